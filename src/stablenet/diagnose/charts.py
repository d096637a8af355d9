"""The charts of a diagnosis, as SVG."""

from __future__ import annotations

import math

from torch import Tensor

from stablenet.diagnose.findings import Diagnosis
from stablenet.page import Drawing, Scale, choose_ticks

WIDTH = 440
MOST_CLASSES = 24
_ROW = 24
_NAMES, _FIGURES = 104, 46  # room for names and for figures
_STEPS = 24  # bars of the histogram, of equal width in the logarithm
_LOWEST = 2.0**-6  # weights below are drawn there


def order_classes(diagnosis: Diagnosis) -> list[int]:
    """Positions of the classes, most told first."""
    told = diagnosis.border or diagnosis.whole
    return sorted(range(len(diagnosis.classes)), key=lambda k: -told.classes[k])[:MOST_CLASSES]


def draw_classes(diagnosis: Diagnosis) -> str:
    """For every class what the features tell of it, and what they tell of permuted labels."""
    order = order_classes(diagnosis)
    tellings = [("whole", diagnosis.whole), *([("border", diagnosis.border)] if diagnosis.border else [])]
    most = max(max(told.raw) for _, told in tellings)
    drawing = Drawing(WIDTH, len(order) * _ROW + 40, "How much the features tell of every class")
    across = Scale(0, max(0.2, 1.05 * most), _NAMES, WIDTH - _FIGURES)
    bottom = len(order) * _ROW + 4
    for tick in choose_ticks(0, across.high):
        drawing.line(across(tick), 0, across(tick), bottom, "grid")
        drawing.text(across(tick), bottom + 14, f"{100 * tick:.0f} %", "tick", "middle")
    height = (_ROW - 8) / len(tellings)
    for row, k in enumerate(order):
        top = row * _ROW + 4
        drawing.text(0, top + 12, _shorten(diagnosis.classes[k]), "name")
        for place, (style, told) in enumerate(tellings):
            drawing.bar(_NAMES, top + place * height, across(told.raw[k]) - _NAMES, height - 1, style)
            drawing.line(*_tick(across(told.permuted), top + place * height, height), "permuted")
        drawing.text(WIDTH, top + 12, f"{100 * tellings[-1][1].raw[k]:.0f} %", "figure", "end")
    drawing.text((_NAMES + WIDTH - _FIGURES) / 2, bottom + 32, "share of the label that is told", "tick", "middle")
    return drawing.render()


def _tick(x: float, top: float, height: float) -> tuple[float, float, float, float]:
    return x, top - 1, x, top + height


def _shorten(name: str) -> str:
    return name if len(name) <= 14 else f"{name[:13]}…"


def draw_trades(diagnosis: Diagnosis) -> str:
    """Dependence left over effective samples, from equal weights to firm ones."""
    drawing = Drawing(WIDTH, 220, "What weights remove, and what it costs")
    across, up = Scale(0, 1, 44, WIDTH - 14), Scale(0, 1, 178, 14)
    for tick in (0, 0.25, 0.5, 0.75, 1):
        drawing.line(44, up(tick), WIDTH - 14, up(tick), "grid")
        drawing.text(38, up(tick) + 4, f"{100 * tick:.0f} %", "tick", "end")
        drawing.text(across(tick), 194, f"{100 * tick:.0f} %", "tick", "middle")
    points = [(1.0, 1.0), *((trade.ess, trade.left) for trade in diagnosis.trades)]
    drawing.path([(across(x), up(y)) for x, y in points], "thick stablenet")
    for number, (x, y) in enumerate(points):
        hint = "equal weights" if number == 0 else f"penalty {diagnosis.trades[number - 1].penalty}"
        drawing.dot(across(x), up(y), 4.5, "dot stablenet", f"{hint}: {y:.0%} left, {x:.0%} effective")
    drawing.text(across(1) - 12, up(1) + 3, "equal weights", "tick", "end")
    drawing.text(across(0.5), 214, "effective samples (across), dependence left (up)", "tick", "middle")
    return drawing.render()


def draw_weights(weights: Tensor) -> str:
    """How the weights (n,) spread."""
    logs = [math.log2(max(w, _LOWEST)) for w in weights.tolist()]
    low, high = min(-1, math.floor(min(logs))), max(1, math.ceil(max(logs)))
    counts = [0] * _STEPS
    for value in logs:
        counts[min(int((value - low) / (high - low) * _STEPS), _STEPS - 1)] += 1
    drawing = Drawing(WIDTH, 190, "Distribution of the weights")
    across, up = Scale(low, high, 12, WIDTH - 12), Scale(0, max(counts), 150, 12)
    width = (across.stop - across.start) / _STEPS
    for step, count in enumerate(counts):
        drawing.bar(across.start + step * width + 1, up(count), width - 2, 150 - up(count), "whole")
    drawing.line(across(0), 6, across(0), 150, "mark")
    for power in range(low, high + 1, 2 if high - low > 7 else 1):
        floor = "≤" if 2.0**power == _LOWEST else ""
        label = f"×{2**power}" if power >= 0 else f"{floor}×1/{2**-power}"
        drawing.text(across(power), 166, label, "tick", "middle")
    drawing.text(WIDTH / 2, 184, "weight of a sample", "tick", "middle")
    return drawing.render()
