"""The earlier methods' weights: what each lowers or recovers; and the simulation's selection and outcome."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from stablenet import UserError
from stablenet.tabular.ancestors import Simulation, balance_treatments, decorrelate_columns, estimate_density_ratio
from stablenet.tabular.encode import ColumnBlock, Encoding


def encoding_of(count: int) -> Encoding:
    return Encoding(tuple(ColumnBlock(f"x{i}", i) for i in range(count)), np.zeros(count), np.ones(count))


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
    together = Encoding((ColumnBlock("x", 0, ("u", "v")), ColumnBlock("y", 2)), np.zeros(3), np.ones(3))
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


def test_the_bias_ties_the_last_column_to_the_outcome_in_the_rates_direction():
    world = Simulation()
    for rate, sign in ((1.7, 1), (-1.7, -1)):
        x, y = world.draw(2000, rate, np.random.default_rng(0))
        assert x.shape == (2000, 10)
        correlations = [np.corrcoef(x[:, j], y)[0, 1] for j in range(5, 10)]
        assert sign * correlations[-1] > 0.5
        assert max(map(abs, correlations[:-1])) < 0.15


def test_selection_has_the_stated_probability():
    """Among rows drawn without selection, the kept ones follow |r|^(−5·distance)."""
    world = Simulation()
    x, _ = world.draw(4000, 1.3, np.random.default_rng(1))
    distance = np.abs(world.outcome(x[:, :5]) - x[:, -1])
    free_s, free_v = world._draw_columns(np.random.default_rng(2))
    free = np.abs(world.outcome(free_s) - free_v[:, -1])
    expected = np.average(free, weights=1.3 ** (-5 * free))
    assert distance.mean() == pytest.approx(expected, rel=0.05)


def test_the_outcome_is_the_same_in_every_environment_and_not_linear():
    world = Simulation()
    for rate in (-2.0, 2.0):
        x, y = world.draw(3000, rate, np.random.default_rng(3))
        assert np.var(y - world.outcome(x[:, :5])) == pytest.approx(0.3, rel=0.1)
    s = np.array([[1.0, 2.0, 3.0, 0.0, 0.0]])
    assert world.outcome(s)[0] == pytest.approx(1 / 3 - 4 / 3 + 3 + 6)
    assert Simulation(misses="exponential").outcome(s)[0] == pytest.approx(2 + np.exp(6))


def test_least_squares_is_misled():
    world = Simulation()
    x, y = world.draw(2000, 1.7, np.random.default_rng(4))
    assert LinearRegression().fit(x, y).coef_[-1] > 0.2


@pytest.mark.parametrize("structure", ["stable-to-unstable", "unstable-to-stable"])
def test_other_structures_tie_the_two_halves(structure):
    s, v = Simulation(structure=structure)._draw_columns(np.random.default_rng(0))
    correlation = np.corrcoef(np.column_stack([s, v]).T)[:5, 5:]
    assert abs(correlation).max() > 0.4


def test_wrong_settings_are_told():
    with pytest.raises(UserError, match="columns must be at least 6, got 5"):
        Simulation(columns=5)
    with pytest.raises(UserError, match="rate is 1"):
        Simulation().draw(10, 1.0, np.random.default_rng(0))
