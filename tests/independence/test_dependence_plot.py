"""What the heat map shows, counts and names."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stablenet.errors import UserError
from stablenet.independence import pairwise_independence_test, plot_dependence
from tests.independence.draws import normal, seeded


@pytest.fixture
def pyplot():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    yield plt
    plt.close("all")


def test_picture_shows_the_strengths_and_counts_the_pairs(pyplot) -> None:
    x = normal(120, 3, seed=38)
    table = torch.cat([x, x[:, :1].square()], 1)
    figure = plot_dependence(table, names=["width", "height", "age", "area"])
    ax = figure.axes[0]
    shown = ax.images[0].get_array()
    strength = pairwise_independence_test(table).strength.numpy()
    np.testing.assert_allclose(shown[~np.eye(4, dtype=bool)], strength[~np.eye(4, dtype=bool)])
    assert shown.mask.diagonal().all()
    assert ax.get_title() == "1 of 6 pairs dependent at 0.05 (dots)"
    assert sorted(map(tuple, ax.collections[0].get_offsets().tolist())) == [(0.0, 3.0), (3.0, 0.0)]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["width", "height", "age", "area"]


def test_picture_can_bring_dependent_features_together(pyplot) -> None:
    x = normal(120, 3, seed=38)
    table = torch.cat([x, x[:, :1].square()], 1)
    ax = plot_dependence(table, order="clustered").axes[0]
    places = {label.get_text(): i for i, label in enumerate(ax.get_yticklabels())}
    assert abs(places["0"] - places["3"]) == 1
    pair = places["0"], places["3"]
    assert set(map(tuple, ax.collections[0].get_offsets().tolist())) == {pair, pair[::-1]}
    shown = ax.images[0].get_array()[pair]
    assert shown == pytest.approx(pairwise_independence_test(table).strength[0, 3].item())
    with pytest.raises(UserError, match="unknown order 'cluster': did you mean 'clustered'"):
        plot_dependence(table, order="cluster")


def test_picture_before_and_after_shares_colours_and_functions(pyplot) -> None:
    table = normal(60, 3, seed=39)
    weights = 0.5 + torch.rand(60, generator=seeded(40))
    generator = seeded(41)
    figure = plot_dependence(table, weights=weights, generator=generator)
    before, after = figure.axes[:2]
    assert before.images[0].get_clim() == after.images[0].get_clim()
    expected = pairwise_independence_test(table, weights=weights, generator=seeded(41)).strength.numpy()
    np.testing.assert_allclose(after.images[0].get_array()[0, 1:], expected[0, 1:])
    assert "effective sample 9" in after.get_title()
    panels = pyplot.subplots(1, 2)[1]
    assert plot_dependence(table, weights=weights, ax=panels) is panels[0].figure
    with pytest.raises(UserError, match="expected 2"):
        plot_dependence(table, weights=weights, ax=panels[0])


def test_picture_of_many_features_stays_readable(pyplot) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(normal(50, 90, seed=42).numpy(), columns=[f"unit {i}" for i in range(90)])
    ax = plot_dependence(table).axes[0]
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert len(labels) <= 24
    assert labels[:2] == ["unit 0", "unit 4"]
    with pytest.raises(UserError, match="names has 2 entries: expected one for each of the 90 features"):
        plot_dependence(table, names=["a", "b"])
