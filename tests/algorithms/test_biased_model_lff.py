"""LfF and LC: the biased network's loss, weights and shifts against walks over samples in float64."""

import math

import pytest
import torch
from torch.nn import functional

from stablenet.algorithms import build_algorithm
from stablenet.algorithms.biased_model import amplify
from tests.algorithms.test_methods import make, make_batch


def make_with(method, **parameters):
    plain = make(method)
    return build_algorithm(method, parameters, plain.network, plain.context)


def test_the_biased_networks_gradient_is_that_of_the_generalised_cross_entropy():
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    gradients = []
    for loss in (lambda z: amplify(z, y, 0.7), lambda z: 1 - z.softmax(1)[torch.arange(6), y] ** 0.7):
        z = logits.clone().requires_grad_()
        loss(z).sum().backward()
        gradients.append(z.grad)
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-5)


def test_weights_follow_averages_divided_by_their_classes_largest():
    """Two batches that share samples, by a walk over samples."""
    algorithm = make_with("lff", memory=0.6).train()
    for module in algorithm.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    averages, labels = {}, {}
    for batch in (make_batch(0), make_batch(3), make_batch(1)):  # the first two are the same rows
        pairs = []
        for network in (algorithm.biased, algorithm.network):
            with torch.no_grad():
                pairs.append(functional.cross_entropy(network(batch.x), batch.y, reduction="none").double().tolist())
        for i, y, *losses in zip(batch.index.tolist(), batch.y.tolist(), *pairs, strict=True):
            before = averages.get(i, losses)
            averages[i] = [0.6 * old + 0.4 * new for old, new in zip(before, losses, strict=True)]
            labels[i] = y
        output = algorithm.loss(batch)
        expected = []
        for i, y in zip(batch.index.tolist(), batch.y.tolist(), strict=True):
            top = [max(averages[j][k] for j in averages if labels[j] == y) for k in (0, 1)]
            biased, own = (averages[i][k] / top[k] for k in (0, 1))
            expected.append(biased / (biased + own))
        assert algorithm.used.weights[batch.index].tolist() == pytest.approx(expected, rel=1e-4)
    told = algorithm.biased(batch.x)
    total = torch.tensor(expected) * functional.cross_entropy(algorithm.network(batch.x), batch.y, reduction="none")
    torch.testing.assert_close(output.per_sample_loss, total + amplify(told, batch.y, 0.7), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("method", ["lff", "lc"])
def test_both_networks_learn_and_evaluation_changes_nothing(method):
    algorithm = make(method).train()
    algorithm.loss(make_batch()).per_sample_loss.mean().backward()
    assert all((p.grad != 0).any() for network in (algorithm.network, algorithm.biased) for p in network.parameters())
    algorithm.eval()
    before = {name: value.clone() for name, value in algorithm.state_dict().items()}
    algorithm.loss(make_batch(1))
    assert all(torch.equal(value, before[name]) for name, value in algorithm.state_dict().items())


def test_the_shift_is_that_of_the_predicted_classes_row():
    algorithm, batch = make_with("lc", strength=0.5, memory=0.25).train(), make_batch()
    for module in algorithm.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    with torch.no_grad():
        told, logits = algorithm.biased(batch.x).double(), algorithm.network(batch.x).double()
    table = torch.full((3, 3), 0.25 / 9, dtype=torch.float64)
    for probabilities, y in zip(told.softmax(1), batch.y.tolist(), strict=True):
        table[:, y] += 0.75 * probabilities / len(batch.y)
    expected = []
    for row, (own, y) in enumerate(zip(logits, batch.y.tolist(), strict=True)):
        shift = [math.log(math.sqrt(p) + 1e-4) for p in table[told[row].argmax()].tolist()]
        shifted = own + torch.tensor(shift, dtype=torch.float64)
        expected.append((shifted.logsumexp(0) - shifted[y]).item())
    found = algorithm.loss(batch).per_sample_loss - amplify(algorithm.biased(batch.x), batch.y, 0.7)
    assert found.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    torch.testing.assert_close(algorithm.table.double(), table, atol=1e-6, rtol=0)


def test_without_strength_and_amplification_lc_is_erm():
    ours, erm, batch = make_with("lc", strength=0.0, amplification=0.0).eval(), make("erm").eval(), make_batch()
    erm.network.load_state_dict(ours.network.state_dict())
    for algorithm in (ours, erm):
        algorithm.loss(batch).per_sample_loss.mean().backward()
    torch.testing.assert_close(ours.loss(batch).per_sample_loss, erm.loss(batch).per_sample_loss)
    for one, two in zip(ours.network.parameters(), erm.network.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad)


def test_without_amplification_lff_is_half_of_erm_at_first():
    """Before they differ, both networks' relative losses are: with one sample of every class W is ½."""
    algorithm = make_with("lff", amplification=0.0).train()
    output = algorithm.loss(make_batch(labels=[0, 1, 2]))
    assert algorithm.used.weights[:3].tolist() == pytest.approx([0.5] * 3)
    assert output.diagnostics["mean_weight"].item() == pytest.approx(0.5)
