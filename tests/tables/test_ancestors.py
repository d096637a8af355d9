from __future__ import annotations

import numpy as np
import pytest

from stablenet.tables.ancestors import balance_treatments, decorrelate_columns, estimate_density_ratio
from stablenet.tables.encode import Block, Encoding


def encoding_of(count: int) -> Encoding:
    return Encoding(tuple(Block(f"x{i}", i, 1) for i in range(count)), np.zeros(count), np.ones(count))


@pytest.fixture
def correlated() -> np.ndarray:
    generator = np.random.default_rng(0)
    a = generator.normal(size=400)
    columns = np.column_stack([a, 0.7 * a + 0.7 * generator.normal(size=400), generator.normal(size=400)])
    return (columns - columns.mean(0)) / columns.std(0)


def weighted_correlation(columns: np.ndarray, w: np.ndarray) -> float:
    return float(np.cov(columns[:, :2].T, aweights=w)[0, 1])


def check_convention(w: np.ndarray) -> None:
    assert (w >= 0).all()
    assert w.mean() == pytest.approx(1, abs=1e-5)


def test_dwr_lowers_every_covariance(correlated):
    w = decorrelate_columns(correlated, encoding_of(3), np.ones(400), steps=500)
    check_convention(w)
    assert abs(weighted_correlation(correlated, w)) < 0.1 * weighted_correlation(correlated, np.ones(400))


def test_dwr_leaves_a_block_alone(correlated):
    together = Encoding((Block("x", 0, 2, ("u", "v")), Block("y", 2, 1)), np.zeros(3), np.ones(3))
    w = decorrelate_columns(correlated, together, np.ones(400), steps=300)
    assert weighted_correlation(correlated, w) > 0.5


def test_srdo_recovers_a_known_density_ratio():
    """Two coins that agree in 80 % of rows: shuffled, each of the four cells has 1/4; w = 0.625 and 2.5."""
    generator = np.random.default_rng(1)
    a = generator.choice([-1.0, 1.0], 4000)
    b = np.where(generator.random(4000) < 0.8, a, -a)
    w = estimate_density_ratio(np.column_stack([a, b]), encoding_of(2), np.ones(4000), seed=0, hidden=(16,), steps=200)
    check_convention(w)
    assert w[a == b].mean() == pytest.approx(0.625, rel=0.15)
    assert w[a != b].mean() == pytest.approx(2.5, rel=0.15)


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
def test_srdo_draws_with_the_base_weights():
    generator = np.random.default_rng(1)
    x = generator.normal(size=(300, 2))
    base = np.where(x[:, 0] > 0, 1.8, 0.2)
    w = estimate_density_ratio(x, encoding_of(2), base, seed=0, hidden=(8,), steps=50)
    assert (base * w).sum() / base.sum() == pytest.approx(1, abs=1e-5)


def test_crbr_balances_treated_and_controls(correlated):
    classes = (correlated[:, 0] > 0).astype(np.int64)

    def gap(w: np.ndarray) -> float:
        treated = correlated[:, 0] > np.quantile(correlated[:, 0], 0.5)
        means = [np.average(correlated[rows, 1], weights=w[rows]) for rows in (treated, ~treated)]
        return abs(means[0] - means[1])

    w = balance_treatments(correlated, encoding_of(3), np.ones(400), classes, steps=500, balance=5.0, decay=0.01)
    check_convention(w)
    assert gap(w) < 0.5 * gap(np.ones(400))
