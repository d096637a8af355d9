"""Charts of what entered a run's loss: the spread of its weights or offsets, and who has them by domain and class."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from stablenet.page import Drawing, Scale, choose_ticks

WIDTH = 440
_NAMES, _GAP, _TOP = 84, 14, 22  # pixels: for the domains' names, between maps, above them
_ROW = 16  # height of a domain
_LETTERS = 13  # of a domain's name
_SHADES = 10  # steps of the colour, styles h0 … h9 of the page
_MOST_LABELS = 7  # that stand beside each other
_BARS = 24
_LEAST = 2.0**-7  # smaller weights share the lowest bar


def draw_weights(weights: Sequence[float]) -> str:
    """Share of the samples by weight, on a logarithmic axis.   weights: n of them, mean one."""
    logs = [math.log2(max(weight, _LEAST)) for weight in weights]
    low, high = min(math.floor(min(logs)), -1), max(math.ceil(max(logs)), 1)
    every = 2 if high - low > _MOST_LABELS else 1
    powers = range(low, high + 1)
    ticks = {float(power): _name_power(power) for power in powers if power % every == 0}  # ×1 among them
    return _draw_spread(logs, Scale(low, high, 40, WIDTH - 8), ticks, "weight, on a logarithmic axis")


def draw_offsets(offsets: Sequence[float]) -> str:
    """Share of the samples by offset of their own class."""
    low, high = min(*offsets, 0.0), max(*offsets, 0.0)
    low, high = (low, high) if high - low > 1e-6 else (-1.0, 1.0)
    ticks = {tick: f"{tick:g}" for tick in choose_ticks(low, high)}
    return _draw_spread(offsets, Scale(low, high, 40, WIDTH - 8), ticks, "offset of the own class, in nats")


def _draw_spread(values: Sequence[float], across: Scale, ticks: Mapping[float, str], title: str) -> str:
    counts = [0] * _BARS
    for value in values:
        counts[min(int((value - across.low) / (across.high - across.low) * _BARS), _BARS - 1)] += 1
    most = max(counts) / len(values)
    drawing, up = Drawing(WIDTH, 196, f"Share of the samples by {title}"), Scale(0, most, 160, 14)
    for tick in choose_ticks(0, most):
        drawing.line(40, up(tick), WIDTH - 8, up(tick), "grid")
        drawing.text(34, up(tick) + 4, f"{100 * tick:g} %", "tick", "end")
    width = (across.stop - across.start) / _BARS
    for step, count in enumerate(counts):
        top = up(count / len(values))
        drawing.bar(across.start + step * width + 1, top, width - 2, 160 - top, "weights")
    drawing.line(across(0), 8, across(0), 160, "mark")
    for place, label in ticks.items():
        drawing.text(across(place), 176, label, "tick", "middle")
    drawing.text(WIDTH / 2, 193, title, "tick", "middle")
    return drawing.render()


def _name_power(power: int) -> str:
    return f"×{2**power}" if power >= 0 else f"×1/{2**-power}"


def draw_groups(maps: Mapping[str, pd.DataFrame], name: Callable[[float], str]) -> str:
    """Maps beside each other in the same colours, domains down and classes across; groups without samples stay blank.

    maps: by title, each with a row per domain and a column per class, NaN where there is none.
    name: how the ends of the colours are written.
    """
    frames = list(maps.values())
    values = [value for frame in frames for value in frame.to_numpy().ravel().tolist() if not math.isnan(value)]
    scale = Scale(min(values), max(*values, min(values) + 1e-6), 0, _SHADES)
    rows = frames[0].index.tolist()
    height, wide = _ROW * len(rows), (WIDTH - _NAMES) / len(frames) - _GAP
    drawing = Drawing(WIDTH, _TOP + height + 36, "Groups of domain and class")
    for number, row in enumerate(rows):
        drawing.text(_NAMES - 8, _TOP + number * _ROW + 12, _shorten(str(row)), "tick", "end")
    for number, (title, frame) in enumerate(maps.items()):
        left = _NAMES + number * (wide + _GAP)
        drawing.text(left, 12, title, "heading")
        _draw_map(drawing, frame, left, wide, scale)
    drawing.text(WIDTH - _GAP, _TOP + height + 30, f"{len(frames[0].columns)} classes across", "tick", "end")
    _draw_key(drawing, _TOP + height + 22, name(scale.low), name(scale.high))
    return drawing.render()


def _draw_map(drawing: Drawing, frame: pd.DataFrame, left: float, wide: float, scale: Scale) -> None:
    cell = wide / len(frame.columns)
    for i, row in enumerate(frame.to_numpy().tolist()):
        for k, value in enumerate(row):
            if not math.isnan(value):
                shade = min(int(scale(value)), _SHADES - 1)
                drawing.cell(left + k * cell, _TOP + i * _ROW, cell, _ROW, f"h{shade}")


def _draw_key(drawing: Drawing, y: float, low: str, high: str) -> None:
    start, wide = _NAMES + 40, 12
    for shade in range(_SHADES):
        drawing.cell(start + shade * wide, y, wide, 8, f"h{shade}")
    drawing.text(start - 6, y + 8, low, "tick", "end")
    drawing.text(start + _SHADES * wide + 6, y + 8, high, "tick")


def _shorten(name: str) -> str:
    return name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"
