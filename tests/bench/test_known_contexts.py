"""The bound on what weights can win: every known context of a class weighs the same."""

import pytest
import torch

from stablenet.algorithms import ALGORITHMS, Context, build_algorithm
from stablenet.data.pipeline import Batch
from stablenet.models import build_network


class Samples:
    def __init__(self, y, domain):
        self.y, self.domain = torch.tensor(y), torch.tensor(domain)

    def batches(self):
        for rows in torch.arange(len(self.y)).split(3):  # uneven parts, out of order
            rows = rows.flip(0)
            yield Batch(torch.zeros(len(rows), 3, 4, 4), self.y[rows], self.domain[rows], rows)


pytestmark = pytest.mark.usefixtures("own_methods")
SAMPLES = Samples([0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 2, 0])


def test_every_context_of_a_class_has_the_same_total():
    from benchmarks.known_contexts import balance

    weights = torch.zeros(8)
    balance(weights, SAMPLES)
    torch.testing.assert_close(weights, torch.tensor([2 / 3, 2 / 3, 2 / 3, 2, 2 / 3, 2 / 3, 4 / 3, 4 / 3]))


def test_weights_grow_from_ones_to_balance():
    import benchmarks.known_contexts  # noqa: F401  (registers the method)

    context = Context(
        num_classes=2, num_domains=3, num_samples=8, epochs=4, seed=0, training_domains=(0, 1, 2), num_validation=8
    )
    network = build_network("paper-cnn", 2, parameters={"image_size": 4})
    algorithm = build_algorithm("known-contexts", {"ramp": 0.5}, network, context)
    algorithm.start_validation(SAMPLES)
    batch = next(SAMPLES.batches())
    found = []
    for epoch in range(3):
        algorithm.start_epoch(epoch, SAMPLES)
        found.append(algorithm.loss(batch).weights)
    balanced = algorithm.validation_weights()[batch.index]
    torch.testing.assert_close(found[0], torch.ones(3))
    torch.testing.assert_close(found[1], 0.5 + 0.5 * balanced)
    torch.testing.assert_close(found[2], balanced)


def test_it_is_marked_as_one_that_learns_from_domains():
    import benchmarks.known_contexts  # noqa: F401

    assert ALGORITHMS["known-contexts"].uses_domains
