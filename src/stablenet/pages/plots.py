"""Charts that several pages draw: training curves, histograms, weights on a logarithmic axis; all of one size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from statistics import fmean
from typing import TypeAlias


@dataclass(frozen=True)
class Scale:
    """Maps low … high of the data to start … stop of the drawing."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """Data without a range lie in the middle."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.start + share * (self.stop - self.start)


@dataclass
class Drawing:
    """Elements in the order they are painted. title: what a screen reader says."""

    width: int
    height: int
    title: str
    elements: list[str] = field(default_factory=list)

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        self.elements.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>')

    def path(self, points: Sequence[tuple[float, float]], style: str) -> None:
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.elements.append(f'<polyline points="{text}" class="{style}"/>')

    def bar(self, x: float, y: float, width: float, height: float, style: str) -> None:
        box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(height, 0):.1f}"'
        self.elements.append(f'<rect {box} rx="1.5" class="{style}"/>')

    def cell(self, x: float, y: float, width: float, height: float, style: str) -> None:
        """A rectangle that touches its neighbours without a seam."""
        box = f'x="{x:.1f}" y="{y:.1f}" width="{width + 0.2:.1f}" height="{height + 0.2:.1f}"'
        self.elements.append(f'<rect {box} class="{style}"/>')

    def dot(self, x: float, y: float, radius: float, style: str, hint: str = "") -> None:
        title = f"<title>{escape(hint)}</title>" if hint else ""
        self.elements.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" class="{style}">{title}</circle>')

    def text(self, x: float, y: float, text: str, style: str = "", anchor: str = "start") -> None:
        self.elements.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{style}">{escape(text)}</text>'
        )

    def render(self) -> str:
        body = "".join(self.elements)
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(self.title)}">{body}</svg>'
        )


def choose_ticks(low: float, high: float) -> list[float]:
    """Round values, four to seven of them; one value alone where there is no range."""
    span = high - low
    if not math.isfinite(span):
        raise ValueError(f"a chart's range must be finite, got {low} to {high}")
    if span <= 1e-12 * max(abs(low), abs(high), 1e-300):  # less than the digits of a float can divide
        return [low]
    power = 10.0 ** math.floor(math.log10(span))
    step = next(step * power for step in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0) if span / (step * power) <= 6.0001)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


WIDTH = 440
HEIGHT = 196
LEFT, RIGHT = 40, WIDTH - 8  # ends of the horizontal axis
TOP, FLOOR = 10, 160  # ends of the vertical axis
BARS = 24
LOWEST = -8  # power of two where the axis of weights ends; smaller weights share the lowest bar
MOST_LABELS = 7  # powers of two that fit side by side
FEW = 20  # epochs up to which points are marked one by one

Curve: TypeAlias = list[tuple[int, float]]  # epoch from 1, percent
NameValue: TypeAlias = Callable[[float], str]


def draw_percent_grid(drawing: Drawing, up: Scale) -> None:
    """Horizontal lines at round percentages.   up: percent."""
    for tick in choose_ticks(up.low, up.high):
        drawing.line(LEFT, up(tick), RIGHT, up(tick), "grid")
        drawing.text(LEFT - 6, up(tick) + 4, f"{tick:g} %", "tick", "end")


def name_axis(drawing: Drawing, ticks: Mapping[float, str], title: str) -> None:
    """Labels below the floor.   ticks: by their place in the drawing."""
    for x, label in ticks.items():
        drawing.text(x, FLOOR + 16, label, "tick", "middle")
    drawing.text(WIDTH / 2, FLOOR + 33, title, "tick", "middle")


def draw_curves(curves: Sequence[tuple[str, Sequence[Curve]]], title: str) -> str | None:
    """Percentages per epoch: a thin line per seed, a thick one for their mean; None where there are none.

    curves: a style and its seeds' curves.
    """
    points = [point for _, seeds in curves for seed in seeds for point in seed]
    if not points:
        return None
    last, low = max(epoch for epoch, _ in points), min(value for _, value in points)
    drawing = Drawing(WIDTH, HEIGHT, title)
    across, up = Scale(1, max(last, 2), LEFT, RIGHT), Scale(10 * min(low // 10, 9), 100, FLOOR, TOP)
    draw_percent_grid(drawing, up)
    for style, seeds in curves:
        if len(seeds) > 1:
            for seed in seeds:
                drawing.path([(across(epoch), up(value)) for epoch, value in seed], f"thin {style}")
        middle = [(across(epoch), up(value)) for epoch, value in average_curves(seeds)]
        drawing.path(middle, f"thick {style}")
        for x, y in middle if len(middle) <= FEW else ():
            drawing.dot(x, y, 2.5, f"dot {style}")
    epochs = sorted({1, round((1 + last) / 2), last})
    name_axis(drawing, {across(epoch): str(epoch) for epoch in epochs}, "epoch")
    return drawing.render()


def average_curves(seeds: Sequence[Curve]) -> Curve:
    """The mean of the epochs that all seeds have; unfinished runs are shorter."""
    held = [dict(seed) for seed in seeds]
    epochs = sorted(set.intersection(*(set(seed) for seed in held))) if held else []
    return [(epoch, fmean(seed[epoch] for seed in held)) for epoch in epochs]


def draw_histogram(groups: Mapping[str, Sequence[float]], across: Scale, ticks: Mapping[float, str], title: str) -> str:
    """Share of the samples by value, with a mark at zero; the bars of several groups stand side by side.

    groups: values by the style of their bars.   across: of the values.   ticks: labels by value.
    """
    shares = {style: count_shares(values, across.low, across.high) for style, values in groups.items()}
    most = max(max(values) for values in shares.values())
    drawing, up = Drawing(WIDTH, HEIGHT, f"Share of the samples by {title}"), Scale(0, most, FLOOR, TOP + 4)
    draw_percent_grid(drawing, up)
    step = (across.stop - across.start) / BARS
    width = (step - 2) / len(shares)
    for place, (style, values) in enumerate(shares.items()):
        for number, share in enumerate(values):
            x = across.start + number * step + 1 + place * width
            drawing.bar(x, up(share), width, FLOOR - up(share), style)
    drawing.line(across(0), TOP - 2, across(0), FLOOR, "mark")
    name_axis(drawing, {across(value): label for value, label in ticks.items()}, title)
    return drawing.render()


def count_shares(values: Sequence[float], low: float, high: float) -> list[float]:
    """Percentages of the values in `BARS` intervals of equal width between low and high."""
    counts = [0] * BARS
    for value in values:
        counts[min(int((value - low) / (high - low) * BARS), BARS - 1)] += 1
    return [100 * count / len(values) for count in counts]


def draw_weight_histogram(groups: Mapping[str, Sequence[float]]) -> str:
    """Share of the samples by weight.   groups: weights of mean one by the style of their bars."""
    logs = {style: [math.log2(max(w, 2.0**LOWEST)) for w in weights] for style, weights in groups.items()}
    every = [value for values in logs.values() for value in values]
    low, high = min(math.floor(min(every)), -1), max(math.ceil(max(every)), 1)
    step = 2 if high - low > MOST_LABELS else 1
    ticks = {float(power): name_power(power) for power in range(low, high + 1) if power % step == 0}  # ×1 among them
    return draw_histogram(logs, Scale(low, high, LEFT, RIGHT), ticks, "weight, on a logarithmic axis")


def name_power(power: int) -> str:
    """A weight of 2^power as a label: ×4, ×1/4."""
    label = f"×{2**power}" if power >= 0 else f"×1/{2**-power}"
    return f"≤ {label}" if power == LOWEST else label


_NAMES, _GAP, _TOP = 122, 14, 22  # pixels: for the rows' names, between maps, above them
_MAP_ROW = 16  # height of a row
_LETTERS = 19  # of a row's name
_SHADES = 10  # steps of the colour, styles h0 … h9 of the pages


def draw_maps(
    maps: Mapping[str, Sequence[Sequence[float]]], rows: Sequence[str], title: str, below: str, name: NameValue
) -> str:
    """Maps beside each other in the same colours; a NaN stays blank.

    maps: by heading, each with a row of values per name in `rows`.   below: what lies across, in words.
    name: how the ends of the colours are written.
    """
    values = [value for cells in maps.values() for row in cells for value in row if not math.isnan(value)]
    scale = Scale(min(values), max(*values, min(values) + 1e-6), 0, _SHADES)
    height, wide = _MAP_ROW * len(rows), (WIDTH - _NAMES) / len(maps) - _GAP
    drawing = Drawing(WIDTH, _TOP + height + 46, title)
    for number, row in enumerate(rows):
        drawing.text(_NAMES - 8, _TOP + number * _MAP_ROW + 12, shorten(row, _LETTERS), "tick", "end")
    for number, (heading, cells) in enumerate(maps.items()):
        left = _NAMES + number * (wide + _GAP)
        drawing.text(left, 12, heading, "heading")
        _draw_map(drawing, cells, left, wide, scale)
    drawing.text(WIDTH - _GAP, _TOP + height + 14, below, "tick", "end")
    _draw_key(drawing, _TOP + height + 30, name(scale.low), name(scale.high))
    return drawing.render()


def _draw_map(drawing: Drawing, cells: Sequence[Sequence[float]], left: float, wide: float, scale: Scale) -> None:
    for i, row in enumerate(cells):
        for k, value in enumerate(row):
            if not math.isnan(value):
                x = left + k * wide / len(row)
                drawing.cell(x, _TOP + i * _MAP_ROW, wide / len(row), _MAP_ROW, f"h{_shade(scale, value)}")


def _shade(scale: Scale, value: float) -> int:
    return min(int(scale(value)), _SHADES - 1)


def _draw_key(drawing: Drawing, y: float, low: str, high: str) -> None:
    start, wide = _NAMES + 40, 12
    for shade in range(_SHADES):
        drawing.cell(start + shade * wide, y, wide, 8, f"h{shade}")
    drawing.text(start - 6, y + 8, low, "tick", "end")
    drawing.text(start + _SHADES * wide + 6, y + 8, high, "tick")


def choose_shade(value: float, low: float, high: float) -> str:
    """The style t0 … t9 of a table's cell that holds a value between low and high."""
    return f"t{max(_shade(Scale(low, high, 0, _SHADES), value), 0)}"


def shorten(name: str, letters: int) -> str:
    return name if len(name) <= letters else f"{name[: letters - 1]}…"
