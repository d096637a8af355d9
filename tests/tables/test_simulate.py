from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from stablenet import UserError
from stablenet.tables.simulate import Simulation


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
    with pytest.raises(UserError, match="columns is 5"):
        Simulation(columns=5)
    with pytest.raises(UserError, match="rate is 1"):
        Simulation().draw(10, 1.0, np.random.default_rng(0))
