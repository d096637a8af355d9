"""The null distribution beside all permutations and simulated chi-squares."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from stablenet.independence import null
from stablenet.independence.features import build_features, squared_norms
from tests.independence.draws import normal, seeded


def test_mean_and_variance_are_those_of_all_permutations() -> None:
    columns = torch.stack([normal(6, seed=9), normal(6, seed=10).exp()], 1)
    options = {"num_functions": 4, "bandwidth": "median", "share": None}
    a = build_features(columns, generator=seeded(0), **options)
    b = build_features(columns.flip(1), generator=seeded(1), **options)
    every = torch.stack([squared_norms(a.x, b.x[list(order)]) for order in itertools.permutations(range(6))])
    torch.testing.assert_close(null.null_mean(a, b), every.mean(0))
    torch.testing.assert_close(null.permutation_variance(a, b), every.var(0, correction=0))


def test_permutation_p_value_agrees_with_every_arrangement() -> None:
    """A column with three ones has 120 arrangements, many of them tied, so the p-value can be counted."""
    ones = torch.zeros(10)
    ones[:3] = 1
    other = torch.tensor([2.0, 1, 2, 0, 0, 1, 0, 0, 0, 1])
    arrangements = torch.zeros(10, 120)
    for column, rows in enumerate(itertools.combinations(range(10), 3)):
        arrangements[list(rows), column] = 1
    drawn = {"share": None, "num_functions": 5, "bandwidth": 1.0}
    b = build_features(other[:, None].double(), generator=seeded(1), **drawn)
    a = [build_features(c[:, None].double(), generator=seeded(0), **drawn) for c in (ones, *arrangements.T)]
    observed, *every = (squared_norms(side.x, b.x).item() for side in a)
    exact = np.mean(np.array(every) >= observed * (1 - 1e-9))
    found = null.permutation_p_values(torch.tensor([[observed]]), a[0], b, 4000, seeded(2)).item()
    assert found == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 4000))


def test_asymptotic_tail_is_that_of_the_weighted_chi_squares() -> None:
    columns = normal(2000, 1, seed=11)
    options = {"num_functions": 8, "bandwidth": 1.0, "share": None}
    a = build_features(columns, generator=seeded(0), **options)
    b = build_features(normal(2000, 1, seed=12), generator=seeded(1), **options)
    scales = torch.outer(a.x.square().sum(0)[0], b.x.square().sum(0)[0]).flatten()
    sums = normal(100_000, len(scales), seed=13).square() @ scales / 1999
    points = torch.quantile(sums, torch.tensor([0.5, 0.9, 0.95, 0.99], dtype=torch.float64))
    found = torch.stack([null.asymptotic_p_values(point.reshape(1, 1), a, b).squeeze() for point in points])
    torch.testing.assert_close(found, torch.tensor([0.5, 0.1, 0.05, 0.01]).double(), rtol=0.1, atol=0)
