"""Steps to a tolerance: the projection is the nearest point, the gap is reported, limits hold."""

import itertools

import pytest
import torch

from stablenet.weighting import effective_sample_size, totals
from stablenet.weighting.totals import GroupSimplex
from tests.weighting.test_solver import correlated, solve


def nearest_by_search(w):
    """The projection by trying every set of positive entries."""
    n, best = len(w), None
    for size in range(1, n + 1):
        for kept in itertools.combinations(range(n), size):
            kept = list(kept)
            point = torch.zeros_like(w)
            point[kept] = w[kept] - (w[kept].sum() - n) / size
            distance = (point - w).norm()
            if (point >= 0).all() and (best is None or distance < best[0]):
                best = distance, point
    return best[1]


@pytest.mark.parametrize("seed", range(5))
def test_projection_is_the_nearest_point(seed):
    w = 3 * torch.randn(5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    torch.testing.assert_close(GroupSimplex(torch.zeros(5, dtype=torch.int64)).project(w), nearest_by_search(w))


@pytest.mark.parametrize("seed", range(5))
def test_projection_by_class_is_that_of_every_class_alone(seed):
    g = torch.Generator().manual_seed(seed)
    w, classes = 3 * torch.randn(11, generator=g, dtype=torch.float64), torch.randint(0, 3, (11,), generator=g) * 7
    expected = torch.empty_like(w)
    for label in classes.unique():
        expected[classes == label] = nearest_by_search(w[classes == label])
    torch.testing.assert_close(GroupSimplex(classes).project(w), expected)


def test_gap_by_class_is_the_sum_of_gaps():
    g = torch.Generator().manual_seed(0)
    w, slope = torch.rand(9, generator=g), torch.randn(9, generator=g)
    classes = torch.tensor([0, 1, 0, 1, 2, 2, 2, 0, 1])
    parts = [(w[k] @ slope[k] - k.sum() * slope[k].min()) for k in (classes == c for c in range(3))]
    torch.testing.assert_close(GroupSimplex(classes).gap(w, slope), torch.stack(parts).sum())


def test_classes_of_very_different_sizes_take_memory_for_their_samples_alone(monkeypatch):
    g = torch.Generator().manual_seed(0)
    sizes = [3000, *range(1, 120)]
    classes = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    classes = classes[torch.randperm(len(classes), generator=g)]
    w, slope = 3 * torch.randn(len(classes), generator=g), torch.randn(len(classes), generator=g)
    apart = GroupSimplex(classes)
    places = sum(len(table._count) * table._widest for _, table in apart._tables)
    assert len(classes) <= places <= 2 * len(classes)
    monkeypatch.setattr(totals, "SPARSE", 1000)
    together = GroupSimplex(classes)
    assert len(together._tables) == 1
    torch.testing.assert_close(apart.project(w), together.project(w))
    torch.testing.assert_close(apart.gap(w, slope), together.gap(w, slope))


@pytest.mark.parametrize("preset", ["paper", "recommended"])
@pytest.mark.parametrize("penalty", [0.5, 0.05])
def test_tolerance_is_reached_and_the_gap_reported(preset, penalty):
    z, _ = correlated(n=64, m=3)
    few = solve(z, preset=preset, penalty=penalty)
    many = solve(z, preset=preset, penalty=penalty, steps=3000, tolerance=1e-3)
    assert len(many.objective) < 3001
    assert many.gap <= 1e-3 * many.objective[int(many.kept)]
    assert many.objective.min() <= few.objective.min()
    assert many.weights.sum().item() == pytest.approx(64, rel=1e-5)


def test_a_smaller_tolerance_gives_a_lower_objective():
    z, _ = correlated()
    loose, tight = (solve(z, penalty=0.1, steps=5000, tolerance=t) for t in (3e-2, 1e-4))
    assert tight.objective.min() < loose.objective.min()
    assert tight.objective.min() > loose.objective.min() - loose.gap  # locally the gap bounds the gain


def test_steps_limit_the_search():
    z, _ = correlated()
    solution = solve(z, penalty=0.02, steps=3, tolerance=1e-9)
    assert len(solution.objective) == 4
    assert solution.gap > 1e-9


def test_the_floor_of_the_effective_sample_size_holds_here_too():
    z, _ = correlated()
    solution = solve(z, penalty=0.0, min_ess=0.8, steps=200, tolerance=1e-6)
    assert effective_sample_size(solution.weights) / 96 >= 0.8 - 1e-5
    assert solution.guarded > 0
