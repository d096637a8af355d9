"""Charts of what the weighting did to one run: dependence before and after, and the weights' distribution."""

from __future__ import annotations

import math

from torch import Tensor

from stablenet.page import Drawing, Scale, choose_ticks
from stablenet.report.weigh import Weighed

WIDTH = 440
_SIDE, _GAP, _TOP = 200, 24, 22
_SHADES = 10  # steps of the colour, styles h0 … h9 of the page
_MOST_LABELS = 7  # that stand beside each other
_BARS = 24
_LEAST = 2.0**-7  # smaller weights share the lowest bar


def draw_dependence(weighed: Weighed) -> str:
    """Two maps in the same colours: all samples alike, and weighted."""
    top = max(float(weighed.before.max()), float(weighed.after.max()), 0.1)
    rows, columns = weighed.before.shape
    height = _SIDE if weighed.on_label is False else min(_SIDE * rows / columns, 1.4 * _SIDE)
    drawing = Drawing(WIDTH, round(_TOP + height + 36), "Dependence before and after weighting")
    for number, (name, found) in enumerate((("all samples alike", weighed.before), ("weighted", weighed.after))):
        left = number * (_SIDE + _GAP) + 8
        drawing.text(left, 12, f"{name}: mean {float(found.mean()):.2f}", "heading")
        _draw_map(drawing, found, left, height, top)
    below = "classes" if weighed.on_label else "features"
    drawing.text(WIDTH / 2, _TOP + height + 14, f"{rows} features against {below}", "tick", "middle")
    _draw_key(drawing, _TOP + height + 22, top)
    return drawing.render()


def _draw_map(drawing: Drawing, found: Tensor, left: float, height: float, top: float) -> None:
    rows, columns = found.shape
    wide, high = _SIDE / columns, height / rows
    drawing.bar(left, _TOP, _SIDE, height, "h0")
    for i, row in enumerate(found.tolist()):
        for k, value in enumerate(row):
            shade = min(int(value / top * _SHADES), _SHADES - 1)
            if shade:  # the lowest shade lies below already
                drawing.cell(left + k * wide, _TOP + i * high, wide, high, f"h{shade}")


def _draw_key(drawing: Drawing, y: float, top: float) -> None:
    start, wide = WIDTH / 2 - 60, 12
    for shade in range(_SHADES):
        drawing.cell(start + shade * wide, y, wide, 8, f"h{shade}")
    drawing.text(start - 6, y + 8, "0", "tick", "end")
    drawing.text(start + _SHADES * wide + 6, y + 8, f"{top:.2f}", "tick")


def draw_weights(weights: Tensor) -> str:
    """Share of the samples by weight, on a logarithmic axis.   weights: (n,), mean one."""
    logs = [math.log2(max(float(weight), _LEAST)) for weight in weights]
    low, high = min(math.floor(min(logs)), -1), max(math.ceil(max(logs)), 1)
    counts = [0] * _BARS
    for value in logs:
        counts[min(int((value - low) / (high - low) * _BARS), _BARS - 1)] += 1
    most = max(counts) / len(logs)
    drawing = Drawing(WIDTH, 196, "Distribution of the weights")
    across, up = Scale(low, high, 40, WIDTH - 8), Scale(0, most, 160, 14)
    for tick in choose_ticks(0, most):
        drawing.line(40, up(tick), WIDTH - 8, up(tick), "grid")
        drawing.text(34, up(tick) + 4, f"{100 * tick:g} %", "tick", "end")
    width = (across.stop - across.start) / _BARS
    for step, count in enumerate(counts):
        drawing.bar(
            across.start + step * width + 1, up(count / len(logs)), width - 2, 160 - up(count / len(logs)), "weights"
        )
    drawing.line(across(0), 8, across(0), 160, "mark")
    for power in range(low, high + 1):
        if power % 2 and high - low > _MOST_LABELS:
            continue  # every other one, ×1 among them
        label = f"×{2**power}" if power >= 0 else f"×1/{2**-power}"
        drawing.text(across(power), 176, label, "tick", "middle")
    drawing.text(WIDTH / 2, 193, "weight, on a logarithmic axis", "tick", "middle")
    return drawing.render()
