"""Charts are valid SVG, and what they show lies where the numbers say."""

from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch

from stablenet.demo.demo_runs import Findings, Outcome
from stablenet.demo.run_demo import draw_accuracies, draw_change, draw_learning, draw_weights_by_background


def outcome(method, seed, target, validation=0.9):
    curves = [
        {"epoch": epoch, "train": {"accuracy": 0.1 * epoch}, "validation": {"accuracy": 0.2 * epoch}}
        for epoch in (1, 2, 3)
    ]
    both = {"source-validation": target, "last": target}
    return Outcome(None, method, seed, 3, validation, both, 0.1, curves)


@pytest.fixture
def findings():
    return Findings(
        [outcome("erm", seed, value) for seed, value in enumerate((0.5, 0.6, 0.7))],
        [outcome("stablenet", seed, value) for seed, value in enumerate((0.8, 0.7, 0.75))],
    )


def parse(svg):
    return ElementTree.fromstring(svg)


def find(svg, kind, style):
    return [node for node in parse(svg).iter(kind) if node.get("class") == style]


def test_a_dot_for_every_seed_at_its_value(findings):
    svg = draw_accuracies(findings)
    dots = find(svg, "circle", "dot erm")
    assert len(dots) == 6  # three of validation, three of the target
    ticks = {node.text: float(node.get("x")) for node in find(svg, "text", "tick")}
    start, stop = ticks["60 %"], ticks["100 %"]
    for dot, value in zip(dots[3:], (0.5, 0.6, 0.7), strict=True):
        assert float(dot.get("cx")) == pytest.approx(start + (value - 0.6) / 0.4 * (stop - start), abs=0.2)
    assert dots[3].find("title").text == "seed 0: 50.0 %"
    assert "60.0 ± 10.0" in [node.text for node in find(svg, "text", "figure")]


def test_bars_of_each_group_add_up_to_all_of_it():
    weights = torch.tensor([0.5, 0.5, 0.6, 0.7, 4.0, 3.9])
    found = SimpleNamespace(weights=weights, agrees=weights < 1)
    svg = draw_weights_by_background([found, found])
    bars = {name: [float(bar.get("height")) for bar in find(svg, "rect", name)] for name in ("agree", "disagree")}
    assert sum(bars["agree"]) == pytest.approx(sum(bars["disagree"]), abs=0.5)
    assert sum(height > 0 for height in bars["disagree"]) <= 2


def test_even_weights_can_be_drawn():
    weights = torch.ones(4)
    svg = draw_weights_by_background(
        [SimpleNamespace(weights=weights, agrees=torch.tensor([True, True, False, False]))]
    )
    assert sum(float(bar.get("height")) > 0 for bar in find(svg, "rect", "agree")) == 1


def test_lines_pass_through_the_means(findings):
    svg = draw_change([(0.8, 0.1), (0.4, 0.3)])
    line = find(svg, "polyline", "thick stablenet")[0]
    (_, first), (_, last) = (map(float, point.split(",")) for point in line.get("points").split())
    floor = 160
    assert (floor - last) / (floor - first) == pytest.approx(1 / 3, abs=0.01)
    assert len(find(svg, "polyline", "thin stablenet")) == 2
    learning = draw_learning(findings, "validation", "accuracy")
    assert len(find(learning, "polyline", "thin erm")) == 3


def test_no_dependence_at_all_can_be_drawn():
    """A chart of one value: the ticks of an axis without a range."""
    points = find(draw_change([(0.0, 0.0)]), "circle", "dot stablenet")
    assert len(points) == 2
