"""StableNet batch by batch: the weights are those of the weighting alone, for features cut off from the graph."""

import torch

from stablenet.algorithms.strategy import describe
from stablenet.models import build_network
from stablenet.weighting import StableWeighting, effective_sample_size
from tests.algorithms.test_methods import CLASSES, FAMILIES, make, make_batch


def test_weights_are_those_of_the_weighting_alone():
    ours = make("stablenet-paper")
    torch.manual_seed(0)
    name, parameters = FAMILIES["paper-cnn"]
    network = build_network(name, CLASSES, parameters=parameters, taps=("last",)).eval()
    ours.network.eval()  # without dropout; the method trains
    weighting = StableWeighting("paper", num_classes=CLASSES, seed=0)
    for step in range(3):  # the second batch is joined to a memory
        batch = make_batch(step)
        output = ours.loss(batch)
        logits, last = network.forward_taps(batch.x)
        assert torch.equal(output.weights, weighting({"last": last.detach()}, labels=batch.y))
        assert torch.equal(output.per_sample_loss, torch.nn.functional.cross_entropy(logits, batch.y, reduction="none"))
        assert not output.weights.requires_grad
        assert torch.equal(ours.sample_columns()["weight"][batch.index], output.weights)
    ess = effective_sample_size(output.weights) / len(output.weights)
    torch.testing.assert_close(output.diagnostics["ess_ratio"], ess)


def test_in_evaluation_nothing_is_solved_and_kept():
    ours = make("stablenet-paper").eval()
    batch = make_batch()
    assert torch.equal(ours.loss(batch).weights, torch.ones(len(batch.y)))
    assert torch.equal(ours.sample_columns()["weight"], torch.ones(3 * len(batch.y)))


def test_before_the_first_solve_there_is_nothing_to_describe():
    assert all(value.isnan() for value in describe(None, torch.ones(3)).values())
