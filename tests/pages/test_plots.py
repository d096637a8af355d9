"""Charts of all pages are valid SVG, and what they show lies where the numbers say."""

from xml.etree import ElementTree

import pytest

from stablenet.pages import (
    Drawing,
    Scale,
    choose_ticks,
    draw_curves,
    draw_maps,
    draw_weight_histogram,
    shorten,
    write_points,
)
from stablenet.pages.plots import BARS, average_curves, count_shares


def find(svg, kind, style):
    return [node for node in ElementTree.fromstring(svg).iter(kind) if style in (node.get("class") or "").split()]


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.3, 1.0), (0, 0.42), (0, 9.3), (0, 6.5), (0, 0.013), (0.9, 1.0)])
def test_ticks_are_few_and_within(low, high):
    ticks = choose_ticks(low, high)
    assert 2 <= len(ticks) <= 7
    assert low - 1e-9 <= ticks[0] < ticks[-1] <= high + 1e-9


def test_names_with_signs_of_markup_are_safe():
    drawing = Drawing(10, 10, 'a "title" & more')
    drawing.text(1, 2, "<script>")
    drawing.dot(1, 2, 3, "dot", "a < b")
    root = ElementTree.fromstring(drawing.render())
    assert root.find("text").text == "<script>"
    assert Scale(0, 10, 100, 0)(2.5) == 75


def test_a_mean_stops_where_the_shortest_run_stops():
    assert average_curves([[(1, 10.0), (2, 20.0)], [(1, 30.0)]]) == [(1, 20.0)]
    assert draw_curves([], "x") is None


def test_a_curve_per_seed_and_one_for_their_mean():
    svg = draw_curves([("erm", [[(1, 40.0), (2, 60.0)], [(1, 60.0), (2, 80.0)]]), ("stablenet", [[(1, 100.0)]])], "x")
    assert (len(find(svg, "polyline", "thin")), len(find(svg, "polyline", "thick"))) == (2, 2)
    thick = find(svg, "polyline", "thick")[0].get("points").split()
    heights = [float(point.split(",")[1]) for point in thick]
    assert heights == pytest.approx([160 - (50 - 40) / 60 * 150, 160 - (70 - 40) / 60 * 150])


def test_curves_that_are_right_everywhere_can_be_drawn():
    assert draw_curves([("erm", [[(1, 100.0), (2, 100.0)]])], "x") is not None


def test_shares_add_up_and_the_upper_end_belongs_to_the_last_bar():
    shares = count_shares([0.0, 0.5, 1.0, 1.0], 0, 1)
    assert sum(shares) == pytest.approx(100)
    assert (shares[0], shares[-1], len(shares)) == (25, 50, BARS)


def test_labels_of_widely_spread_weights_stand_apart():
    labels = [node.text for node in find(draw_weight_histogram({"weights": [0.01, 1.0, 7.9]}), "text", "tick")]
    assert [label for label in labels if label.startswith("×")] == ["×1/64", "×1/16", "×1/4", "×1", "×4"]


def test_weights_below_the_axis_are_at_its_end():
    labels = [node.text for node in find(draw_weight_histogram({"weights": [0.0, 1.0]}), "text", "tick")]
    assert labels[-6:-1] == ["≤ ×1/256", "×1/64", "×1/16", "×1/4", "×1"]
    assert draw_weight_histogram({"weights": [0.0, 1.0]}) == draw_weight_histogram({"weights": [2**-8, 1.0]})


def test_weights_are_counted():
    svg = draw_weight_histogram({"weights": [0.5] * 30 + [2.5] * 10})
    heights = sorted((float(bar.get("height")) for bar in find(svg, "rect", "weights")), reverse=True)
    assert heights[1] == pytest.approx(heights[0] / 3, abs=0.2)
    assert sum(heights[2:]) == 0


def test_names_and_points():
    assert (shorten("grass", 5), shorten("grasses", 5)) == ("grass", "gras…")
    assert (write_points(1.26), write_points(-0.4), write_points(-0.01)) == ("+1.3", "−0.4", "0.0")


@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e-320, 1e300])
def test_a_range_of_one_value_has_one_tick_in_the_middle(value):
    assert choose_ticks(value, value) == [value]
    assert Scale(value, value, 0, 100)(value) == 50


def test_a_range_without_end_is_refused():
    with pytest.raises(ValueError, match="must be finite"):
        choose_ticks(0, float("inf"))


def test_maps_of_one_value_can_be_drawn():
    svg = draw_maps({"one": [[0.5]]}, ["row"], "a title", "one across", str)
    assert len(find(svg, "rect", "h0")) == 2  # the cell, and the shade in the key
