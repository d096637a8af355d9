"""The page's charts, drawn as SVG from the findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from stablenet.demo.findings import Findings, Outcome
from stablenet.demo.weights import SampleWeights
from stablenet.metrics import Spread
from stablenet.page import Drawing, Scale, choose_ticks

WIDTH = 440
_LEFT, _RIGHT = 74, 86  # room for names and for figures
_ROW = 26
_NAMES = {"erm": "ERM", "stablenet": "StableNet"}
_FEW = 20  # points of a line that are marked one by one
_WEIGHT_STEPS = 20  # bars, of equal width in the logarithm
_LOWEST = -7  # power of two where the axis of weights ends; zero stands there too
_LABELS = 8  # powers of two that can be named side by side


def draw_accuracies(findings: Findings) -> str:
    """Every seed a dot, pairs joined; a bar from mean − to mean + one sample standard deviation."""
    groups = [
        ("held-out images of the training world", findings.spread_validation),
        ("target: the same digits on swapped backgrounds", findings.spread_target),
    ]
    spreads = [[spread(outcomes) for outcomes in (findings.reference, findings.method)] for _, spread in groups]
    lowest = min(min(spread.values) for pair in spreads for spread in pair)
    scale = Scale(max(0.0, math.floor(10 * lowest - 0.3) / 10), 1.0, _LEFT, WIDTH - _RIGHT)
    drawing = Drawing(WIDTH, 2 * (2 * _ROW + 34) + 26, "Accuracy of both methods on validation and target")
    bottom = drawing.height - 20
    for tick in choose_ticks(scale.low, scale.high):
        drawing.line(scale(tick), 22, scale(tick), bottom, "grid")
        drawing.text(scale(tick), bottom + 14, f"{100 * tick:.0f} %", "tick", "middle")
    for number, ((name, _), pair) in enumerate(zip(groups, spreads, strict=True)):
        top = number * (2 * _ROW + 34)
        drawing.text(0, top + 14, name, "heading")
        _draw_pair(drawing, scale, pair, findings.seeds, top + 36)
    return drawing.render()


def _draw_pair(drawing: Drawing, scale: Scale, pair: Sequence[Spread], seeds: Sequence[int], top: float) -> None:
    for first, second in zip(pair[0].values, pair[1].values, strict=True):
        drawing.line(scale(first), top, scale(second), top + _ROW, "link")
    for row, (method, spread) in enumerate(zip(_NAMES, pair, strict=True)):
        y = top + row * _ROW
        low, high = spread.mean - spread.deviation, min(spread.mean + spread.deviation, 1.0)
        drawing.bar(scale(max(low, scale.low)), y - 4, scale(high) - scale(max(low, scale.low)), 8, f"band {method}")
        drawing.line(scale(spread.mean), y - 9, scale(spread.mean), y + 9, f"mean {method}")
        for seed, value in zip(seeds, spread.values, strict=True):
            drawing.dot(scale(value), y, 4, f"dot {method}", f"seed {seed}: {100 * value:.1f} %")
        drawing.text(0, y + 4, _NAMES[method], "name")
        drawing.text(WIDTH, y + 4, f"{100 * spread.mean:.1f} ± {100 * spread.deviation:.1f}", "figure", "end")


def draw_weights(found: Sequence[SampleWeights]) -> str:
    """How the weights of all seeds spread, samples on their class's main background beside the others."""
    groups = {
        "agree": [float(w) for part in found for w in part.weights[part.agrees]],
        "disagree": [float(w) for part in found for w in part.weights[~part.agrees]],
    }
    logs = {name: [math.log2(max(w, 2**_LOWEST)) for w in values] for name, values in groups.items()}
    low = min(math.floor(min(min(values) for values in logs.values())), -1)
    high = max(math.ceil(max(max(values) for values in logs.values())), 1)
    shares = {name: _count_shares(values, low, high) for name, values in logs.items()}
    most = max(max(values) for values in shares.values())
    drawing = Drawing(WIDTH, 196, "Distribution of the weights of both groups")
    across, up = Scale(low, high, 34, WIDTH - 8), Scale(0, most, 160, 14)
    for tick in choose_ticks(0, most):
        drawing.line(34, up(tick), WIDTH - 8, up(tick), "grid")
        drawing.text(30, up(tick) + 4, f"{100 * tick:.0f} %", "tick", "end")
    width = (across.stop - across.start) / _WEIGHT_STEPS
    for place, (name, values) in enumerate(shares.items()):
        for step, share in enumerate(values):
            x = across.start + step * width + 1 + place * (width - 2) / 2
            drawing.bar(x, up(share), (width - 2) / 2, 160 - up(share), name)
    drawing.line(across(0), 10, across(0), 160, "mark")
    for power in range(low, high + 1, 2 if high - low > _LABELS else 1):
        label = f"×{2**power}" if power >= 0 else f"×1/{2**-power}"
        label = f"≤ {label}" if power == _LOWEST else label
        drawing.text(across(power), 176, label, "tick", "middle")
    drawing.text(WIDTH / 2, 193, "weight, on a logarithmic axis", "tick", "middle")
    return drawing.render()


def _count_shares(values: Sequence[float], low: float, high: float) -> list[float]:
    counts = [0] * _WEIGHT_STEPS
    for value in values:
        counts[min(int((value - low) / (high - low) * _WEIGHT_STEPS), _WEIGHT_STEPS - 1)] += 1
    return [count / len(values) for count in counts]


def draw_dependence(pairs: Sequence[tuple[float, float]]) -> str:
    """Share explained by the label, with samples alike and under the weights: a line for every seed and their mean."""
    drawing = Drawing(WIDTH, 196, "Dependence with samples alike and under the weights")
    left, right, up = 110.0, WIDTH - 90.0, Scale(0, 1.05 * max(max(pair) for pair in pairs), 160, 10)
    for tick in choose_ticks(0, up.high):
        drawing.line(40, up(tick), WIDTH - 8, up(tick), "grid")
        drawing.text(34, up(tick) + 4, f"{100 * tick:g} %", "tick", "end")
    for before, after in pairs:
        drawing.path([(left, up(before)), (right, up(after))], "thin stablenet")
    middle = [(x, up(fmean(values))) for x, values in zip((left, right), zip(*pairs, strict=True), strict=True)]
    drawing.path(middle, "thick stablenet")
    for x, y in middle:
        drawing.dot(x, y, 2.5, "dot stablenet")
    drawing.text(left, 180, "samples alike", "tick", "middle")
    drawing.text(right, 180, "under the weights", "tick", "middle")
    return drawing.render()


def draw_learning(findings: Findings, part: str, name: str) -> str:
    """A figure of every epoch for both methods, for example validation accuracy."""

    def read(outcome: Outcome) -> list[tuple[float, float]]:
        return [(record["epoch"], record[part][name]) for record in outcome.curves]

    lines = [("erm", read, findings.reference), ("stablenet", read, findings.method)]
    return _draw_lines(lines, f"{part} {name} per epoch", lambda value: f"{100 * value:.0f} %", high=1.0)


def _draw_lines(
    lines: Sequence[tuple[str, Callable[[Outcome], list[tuple[float, float]]], Sequence[Outcome]]],
    title: str,
    label: Callable[[float], str],
    high: float | None = None,
) -> str:
    """A thin line per seed and a thick one for their mean."""
    drawn = [(style, [read(outcome) for outcome in outcomes]) for style, read, outcomes in lines]
    points = [point for _, seeds in drawn for seed in seeds for point in seed]
    last = max(x for x, _ in points)
    drawing = Drawing(WIDTH, 196, title)
    across = Scale(1, max(last, 2), 40, WIDTH - 8)
    up = Scale(0, high or 1.05 * max(y for _, y in points), 160, 10)
    for tick in choose_ticks(0, up.high):
        drawing.line(40, up(tick), WIDTH - 8, up(tick), "grid")
        drawing.text(34, up(tick) + 4, label(tick), "tick", "end")
    for style, seeds in drawn:
        for seed in seeds:
            drawing.path([(across(x), up(y)) for x, y in seed], f"thin {style}")
        middle = [(across(seed[0][0]), up(fmean(y for _, y in seed))) for seed in zip(*seeds, strict=True)]
        drawing.path(middle, f"thick {style}")
        if len(middle) <= _FEW:
            for x, y in middle:
                drawing.dot(x, y, 2.5, f"dot {style}")
    for epoch in sorted({1, round(last / 2), int(last)}):
        drawing.text(across(epoch), 176, str(epoch), "tick", "middle")
    drawing.text(WIDTH / 2, 193, "epoch", "tick", "middle")
    return drawing.render()
