"""What weights can win that are told every sample's context."""

import pytest
import torch

from stablenet.algorithms import ALGORITHMS, Context, build_algorithm
from stablenet.algorithms.domain_losses import balance, balance_groups, make_independent
from stablenet.data.loader import Batch
from stablenet.models import build_network


class Samples:
    def __init__(self, y, domain):
        self.y, self.domain = torch.tensor(y), torch.tensor(domain)

    def batches(self):
        for rows in torch.arange(len(self.y)).split(3):  # uneven parts, out of order
            rows = rows.flip(0)
            yield Batch(torch.zeros(len(rows), 3, 4, 4), self.y[rows], self.domain[rows], rows)


SAMPLES = Samples([0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 2, 0])


def build_known_contexts(**parameters):
    context = Context(
        num_classes=2, num_domains=3, num_samples=8, epochs=4, seed=0, training_domains=(0, 1, 2), num_validation=8
    )
    network = build_network("paper-cnn", 2, parameters={"image_size": 4})
    return build_algorithm("known-contexts", parameters, network, context)


def test_every_context_of_a_class_has_the_same_total():
    weights = balance(SAMPLES.y, SAMPLES.domain)
    torch.testing.assert_close(weights, torch.tensor([2 / 3, 2 / 3, 2 / 3, 2, 2 / 3, 2 / 3, 4 / 3, 4 / 3]))


def test_context_and_label_become_independent_where_both_classes_have_all_contexts():
    y = torch.tensor([0] * 60 + [1] * 60)
    context = torch.tensor([0] * 50 + [1] * 10 + [0] * 10 + [1] * 50)
    weights = make_independent(y, context, penalty=1e-5)
    shares = [float(weights[(y == c) & (context == 0)].sum() / weights[y == c].sum()) for c in (0, 1)]
    assert shares == pytest.approx([0.5, 0.5], abs=0.01)
    assert [float(weights[y == c].sum()) for c in (0, 1)] == pytest.approx([60, 60], abs=1e-3)


def test_a_context_that_all_classes_have_carries_independence():
    y = torch.tensor([0] * 60 + [1] * 60)
    context = torch.tensor([0] * 40 + [1] * 20 + [2] * 40 + [1] * 20)  # only context 1 is in both
    weights = make_independent(y, context, penalty=1e-5)
    assert float(weights[context == 1].sum() / weights.sum()) > 0.95


@pytest.mark.parametrize("aim", ["balance", "independence"])
def test_the_aim_chooses_the_weights(aim):
    algorithm = build_known_contexts(aim=aim, penalty=0.01)
    algorithm.start_epoch(0, SAMPLES)
    judge = algorithm.judge_epochs()
    judge.start(SAMPLES)
    balanced = balance(SAMPLES.y, SAMPLES.domain)
    independent = make_independent(SAMPLES.y, SAMPLES.domain, 0.01)
    assert not torch.allclose(balanced, independent, atol=0.05)
    for found in (algorithm.weights, judge.weights()):
        torch.testing.assert_close(found, balanced if aim == "balance" else independent, atol=1e-3, rtol=0)


def test_weights_grow_from_ones_to_balance():
    algorithm = build_known_contexts(ramp=0.5)
    judge = algorithm.judge_epochs()
    judge.start(SAMPLES)
    batch = next(SAMPLES.batches())
    found = []
    for epoch in range(3):
        algorithm.start_epoch(epoch, SAMPLES)
        found.append(algorithm.loss(batch).weights)
    balanced = judge.weights()[batch.index]
    torch.testing.assert_close(found[0], torch.ones(3))
    torch.testing.assert_close(found[1], 0.5 + 0.5 * balanced)
    torch.testing.assert_close(found[2], balanced)


def test_every_group_has_the_same_total():
    weights = balance_groups(SAMPLES.y, SAMPLES.domain)
    groups = [(0, 0), (0, 1), (1, 1), (1, 2), (1, 0)]
    totals = [float(weights[(SAMPLES.y == y) & (SAMPLES.domain == k)].sum()) for y, k in groups]
    assert totals == pytest.approx([8 / 5] * 5)


def test_sampling_draws_by_the_weights_and_leaves_the_loss_plain():
    algorithm = build_known_contexts(aim="groups", by="sampling")
    algorithm.start_epoch(0, SAMPLES)
    torch.testing.assert_close(algorithm.sampling_weights(), balance_groups(SAMPLES.y, SAMPLES.domain))
    torch.testing.assert_close(algorithm.sample_columns()["weight"], algorithm.sampling_weights())
    assert algorithm.loss(next(SAMPLES.batches())).weights is None
    assert build_known_contexts(aim="groups").sampling_weights() is None


def test_it_is_marked_as_an_oracle():
    assert ALGORITHMS["known-contexts"].marks({}) == "‡"
