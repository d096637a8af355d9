"""The weights of a table: gradient and objective against their definition, base weights, the floor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import approx_fprime

from stablenet import UserError
from stablenet.tabular.solve import SolveSettings, TableProblem, blend_to_floor, solve_table
from stablenet.weighting.statistic import DirectBlocks


def statistic_of(columns: np.ndarray) -> DirectBlocks:
    rows = torch.from_numpy(columns - columns.mean(0))
    return DirectBlocks(rows, torch.eye(columns.shape[1], dtype=torch.bool), "covariance")


@pytest.fixture
def correlated() -> np.ndarray:
    generator = np.random.default_rng(0)
    a = generator.normal(size=60)
    return np.column_stack([a, 0.8 * a + 0.6 * generator.normal(size=60)])


def test_the_gradient_is_that_of_the_value(correlated):
    generator = np.random.default_rng(1)
    base = generator.uniform(0.5, 2, 60)
    problem = TableProblem(statistic_of(correlated), torch.from_numpy(base), penalty=0.1)
    point = generator.uniform(0.2, 2, 60)
    _, gradient = problem(point)
    np.testing.assert_allclose(gradient, approx_fprime(point, lambda x: problem(x)[0], 1e-6), atol=1e-3)


def test_the_objective_is_its_definition(correlated):
    base = np.ones(60)
    w = np.random.default_rng(1).uniform(0.2, 2, 60)
    problem = TableProblem(statistic_of(correlated), torch.from_numpy(base), penalty=0.1)
    share = w / w.sum()
    covariance = share @ correlated.prod(1) - np.prod(share @ correlated)
    plain = np.cov(correlated.T, bias=True)[0, 1]
    expected = covariance**2 / plain**2 + 0.1 * np.mean((w / w.mean()) ** 2)
    assert problem(w)[0] / 60 == pytest.approx(expected)


def test_weights_remove_correlation_and_keep_the_convention(correlated):
    w = solve_table(statistic_of(correlated), np.ones(60), SolveSettings(penalty=0.001))
    share = w / w.sum()
    left = share @ correlated.prod(1) - np.prod(share @ correlated)
    assert abs(left) < 0.1 * np.cov(correlated.T, bias=True)[0, 1]
    assert (w >= 0).all()
    assert w.mean() == pytest.approx(1)


def test_no_random_start_finds_a_lower_objective(correlated):
    settings = SolveSettings(penalty=0.05, max_evaluations=200, tolerance=1e-9, min_ess=0)
    problem = TableProblem(statistic_of(correlated), torch.ones(60, dtype=torch.float64), 0.05)
    found = problem(solve_table(statistic_of(correlated), np.ones(60), settings))[0]
    generator = np.random.default_rng(2)
    for _ in range(20):
        w = generator.exponential(size=60)
        for _ in range(300):
            w = np.maximum(w - 0.02 * problem(w)[1], 0)
        assert found <= problem(w)[0] + 1e-6


def test_a_base_weight_is_a_repeated_row(correlated):
    base = np.tile([1.0, 2.0, 3.0], 20)
    repeated = np.repeat(correlated, base.astype(int), 0)
    centred = correlated - np.average(correlated, axis=0, weights=base)
    rows = DirectBlocks(torch.from_numpy(centred), torch.eye(2, dtype=torch.bool), "covariance")
    w = solve_table(rows, base, SolveSettings())
    long = solve_table(statistic_of(repeated), np.ones(len(repeated)), SolveSettings())
    np.testing.assert_allclose(np.repeat(w, base.astype(int)), long, rtol=1e-6)


def test_nothing_to_remove_gives_ones():
    only = np.random.default_rng(0).normal(size=(10, 1))
    np.testing.assert_array_equal(solve_table(statistic_of(only), np.ones(10), SolveSettings()), 1)


def test_the_floor_of_the_effective_sample_size_holds():
    w = torch.tensor([4.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    share = torch.full((4,), 0.25, dtype=torch.float64)
    blended = blend_to_floor(w, share, 0.5)
    assert float(blended.sum() ** 2 / blended.square().sum()) == pytest.approx(2)
    assert torch.equal(blend_to_floor(w, share, 0.25), w)


@pytest.mark.parametrize("wrong", [{"penalty": -1}, {"min_ess": 2}, {"max_evaluations": 0}, {"tolerance": -1}])
def test_wrong_settings_are_told(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        SolveSettings(**wrong)
