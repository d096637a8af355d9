"""Charts are valid SVG and show every number at its place; nothing leads over what is missing."""

from dataclasses import replace
from xml.etree import ElementTree

import pandas as pd
import pytest

from stablenet.pages import draw_curves
from stablenet.report import charts
from stablenet.report.charts import CurveReader


def find(svg, kind, style):
    return [node for node in ElementTree.fromstring(svg).iter(kind) if style in (node.get("class") or "").split()]


@pytest.fixture(scope="module")
def styles(result):
    return charts.choose_styles(result)


def test_rows_have_styles_of_their_own(result, styles):
    assert styles["erm"] == "erm"
    assert styles["stablenet"] == "stablenet"
    assert len(set(styles.values())) == len(styles)
    twice = replace(result, rows=(*result.rows, replace(result.rows[2], id="other")))
    assert len(set(charts.choose_styles(twice).values())) == 4


def test_differences_lie_where_the_numbers_say(result, styles):
    column = result.columns[0]
    svg = charts.draw_paired(result, column, styles)
    versus = result.cell("stablenet", "easy").versus
    zero = float(find(svg, "line", "mark")[0].get("x1"))
    dots = [float(dot.get("cx")) for dot in find(svg, "circle", "seed")]
    assert len(dots) == 2
    assert [x > zero for x in dots] == [value > 0 for value in versus.differences]
    if versus.differences[0] != versus.differences[1]:
        assert (dots[0] < dots[1]) == (versus.differences[0] < versus.differences[1])
    assert charts.draw_paired(result, result.columns[3], styles) is None


def test_where_nothing_differs_the_axis_still_has_points(result, styles, monkeypatch):
    nothing = charts._find_range([])
    monkeypatch.setattr(charts, "_find_range", lambda cells: nothing)
    svg = charts.draw_paired(result, result.columns[0], styles)
    ticks = [tick.text for tick in find(svg, "text", "tick") if "middle" in tick.attrib.values()]
    assert ticks == ["−0.4", "−0.2", "0", "+0.2", "+0.4"]


def test_long_names_fit_in_lines_of_their_own(result, styles):
    rows = [
        replace(row, title="StableNet, offsets of the first stage") if row.id == "stablenet" else row
        for row in result.rows
    ]
    svg = charts.draw_paired(replace(result, rows=tuple(rows)), result.columns[0], styles)
    names = find(svg, "text", "name")
    assert [name.text for name in names] == ["StableNet, offsets of", "the first stage"]
    assert float(names[0].get("y")) + 14 == float(names[1].get("y"))
    long = [replace(row, title="a word or two " * 9) for row in rows if row.id != "coral"]
    names = find(charts.draw_paired(replace(result, rows=tuple(long)), result.columns[0], styles), "text", "name")
    assert [name.text.endswith("…") for name in names] == [False, False, True]


def test_a_line_per_row_against_the_ratio(result, styles):
    svg = charts.draw_along(result, styles)
    assert len(find(svg, "polyline", "thick")) == 2
    assert len(find(svg, "polyline", "printed")) == 2
    assert len(find(svg, "circle", "seed")) == 8
    assert find(svg, "polyline", "k0") == []


def test_no_line_leads_over_a_missing_column():
    assert charts._split({"a": 1, "c": 1, "d": 1}, ["a", "b", "c", "d"]) == [["a"], ["c", "d"]]


def test_training_curves_of_every_seed_and_their_mean(result, styles):
    curves = CurveReader().read_column(result, result.columns[1], "validation")
    assert {row: len(found) for row, found in curves.items()} == {"erm": 2, "coral": 1, "stablenet": 2}
    assert all(0 <= share <= 100 for found in curves.values() for curve in found for _, share in curve)
    svg = draw_curves([(styles[row], found) for row, found in curves.items()], "x")
    assert (len(find(svg, "polyline", "thin")), len(find(svg, "polyline", "thick"))) == (4, 3)


def test_maps_shade_by_value_and_leave_empty_groups_blank():
    first = pd.DataFrame({"cat": [0.9, 0.1], "dog": [float("nan"), 0.55]}, index=["grass", "a very very long beach"])
    svg = charts.draw_groups({"by number": first, "by weight": first * 0 + 0.1}, lambda value: f"{value:.1f}")
    key = 1  # every shade stands once in the key
    assert len(find(svg, "rect", "h9")) == 1 + key
    assert len(find(svg, "rect", "h5")) == 1 + key
    assert len(find(svg, "rect", "h0")) == 1 + 3 + key
    texts = [node.text for node in find(svg, "text", "tick")]
    assert texts[:2] == ["grass", "a very very long b…"]
    assert texts[-2:] == ["0.1", "0.9"]


def test_offsets_are_counted_from_both_sides_of_zero():
    svg = charts.draw_offsets([-2.0] * 10 + [1.0] * 30)
    bars = find(svg, "rect", "weights")
    heights = [float(bar.get("height")) for bar in bars]
    assert heights[0] == pytest.approx(heights[-1] / 3, abs=0.2)
    zero = float(find(svg, "line", "mark")[0].get("x1"))
    assert float(bars[0].get("x")) < zero < float(bars[-1].get("x"))
    assert len(find(charts.draw_offsets([0.0, 0.0]), "rect", "weights")) == len(bars)
