"""SPARE and EIIL: clusters and environments on made-up outputs, and what is made of them."""

import numpy as np
import pytest
import torch

from stablenet.algorithms.domain_losses import scale_slope
from stablenet.algorithms.two_stage import Outputs, find_clusters, infer_environments
from tests.algorithms.biased import draw, train
from tests.algorithms.test_methods import AllBatches, make, make_batch


def test_as_many_clusters_as_there_are():
    generator = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    truth = np.repeat(np.arange(3), [30, 20, 5])
    found = find_clusters(centres[truth] + 0.05 * generator.standard_normal((55, 2)), most=5, seed=0)
    assert len(np.unique(found)) == 3
    assert all(len(np.unique(found[truth == k])) == 1 for k in range(3))


ALIKE = np.array([[1.0, 0.0]] * 5 + [[1.0, 1e-300]] * 4)  # they differ, but by less than k-means can tell apart


@pytest.mark.parametrize("rows", [np.zeros((9, 2)), np.zeros((1, 2)), np.array([[0.0, 1.0], [1.0, 0.0]]), ALIKE])
def test_where_nothing_differs_there_is_one_cluster(rows):
    assert (find_clusters(rows, most=4, seed=0) == 0).all()


def test_samples_are_drawn_by_one_over_the_size_of_their_cluster():
    """In class 0 groups of 6 and 2, in class 1 of 3 and 1."""
    algorithm = make("spare")
    logits = torch.tensor([[3.0, 0.0, 0.0]] * 6 + [[-3.0, 0.0, 0.0]] * 2 + [[0.0, 3.0, 0.0]] * 3 + [[0.0, -3.0, 0.0]])
    logits = logits + 0.01 * torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0] * 8 + [1] * 4)
    mixed = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    algorithm.draws = torch.ones(12)
    object.__setattr__(algorithm.settings, "clusters", 2)
    told = algorithm.look(Outputs(mixed, y, logits))
    expected = torch.tensor([1 / 6] * 6 + [1 / 2] * 2 + [1 / 3] * 3 + [1.0])
    torch.testing.assert_close(algorithm.draws[mixed], 12 * expected / expected.sum())
    assert told["clusters"] == 4


@pytest.mark.parametrize(
    ("method", "parameters"), [("spare", {"share": 0.0}), ("eiil", {"share": 0.0}), ("jtt", {"share": 0.0})]
)
def test_without_a_first_stage_it_is_erm(method, parameters):
    algorithm, erm = train(method, parameters, epochs=2), train("erm", epochs=2)
    for one, two in zip(algorithm.network.parameters(), erm.network.parameters(), strict=True):
        assert torch.equal(one, two)


def test_without_power_samples_are_drawn_alike():
    algorithm = train("spare", {"power": 0.0}, epochs=2)
    torch.testing.assert_close(algorithm.sampling_weights(), torch.ones(1000))


def test_clusters_of_early_outputs_are_the_groups():
    algorithm, samples = train("spare", epochs=3), draw(1000, 0.95, 0)
    rare = samples.y != samples.domain
    drawn = algorithm.sample_columns()["weight"]
    assert drawn[rare].mean() > 4 * drawn[~rare].mean()


def test_the_written_out_slope_is_that_of_autograd():
    """The same steps, with IRM's penalty differentiated by torch in float64."""
    generator = torch.Generator().manual_seed(0)
    logits, y = torch.randn(12, 3, generator=generator).double(), torch.arange(12) % 3
    start = torch.randn(12, generator=generator).double()
    assignment = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([assignment], 0.05)
    for _ in range(40):
        scale = torch.ones((), dtype=torch.float64, requires_grad=True)
        losses = torch.nn.functional.cross_entropy(scale * logits, y, reduction="none")
        q = assignment.sigmoid()
        slopes = [torch.autograd.grad((part * losses).mean(), scale, create_graph=True)[0] for part in (q, 1 - q)]
        optimizer.zero_grad()
        (-torch.stack([slope.square() for slope in slopes]).mean()).backward()
        optimizer.step()
    found = infer_environments(scale_slope(logits, y), start, 40, 0.05)
    assert found.tolist() == (assignment <= 0).long().tolist()
    assert not torch.equal(found, (start <= 0).long())


def test_environments_part_those_the_reference_is_right_about_from_the_others():
    slope = torch.cat([torch.full((50,), -0.4), torch.full((10,), 2.0)])
    found = infer_environments(slope, torch.randn(60, generator=torch.Generator().manual_seed(0)), 2000, 0.05)
    assert len(found[:50].unique()) == len(found[50:].unique()) == 1
    assert found[0] != found[-1]


def test_groups_are_pairs_of_class_and_environment():
    algorithm, batch = make("eiil").eval(), make_batch(labels=[0, 0, 0, 1, 2, 2, 2, 2])
    algorithm.first_epochs = 1
    algorithm.second.fill_(True)
    algorithm.environment[batch.index] = torch.tensor([0, 0, 1, 1, 0, 0, 0, 1])
    weights = algorithm.loss(batch).weights
    expected = 8 / 5 / torch.tensor([2.0, 2, 1, 1, 3, 3, 3, 1])  # five groups that occur
    torch.testing.assert_close(weights, expected)
    algorithm.train().loss(batch)
    assert len(algorithm.log_q.unique()) > 1
    assert algorithm.start_epoch(0, AllBatches()) == {}
