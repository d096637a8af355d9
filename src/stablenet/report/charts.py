"""The report's charts of a table, drawn as SVG. Every row of a table has a style of its own, the same in all charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from textwrap import wrap

from stablenet.bench import BenchResult, Cell, Column, Row
from stablenet.page import Drawing, Scale, choose_ticks
from stablenet.report.curves import Curve
from stablenet.report.gather import shown_rows
from stablenet.report.numbers import write_points, write_share

WIDTH = 440
PALETTE = 8  # styles k0 … k7 of the page, for rows that have none of their own
_LEFT, _RIGHT, _ROW = 120, 92, 32
_NAME = 17  # letters of a line that fit left of a row
_OWN = {"erm": "erm", "stablenet": "stablenet"}


def choose_styles(result: BenchResult) -> dict[str, str]:
    """A style for every row: ERM and StableNet have theirs, the others take the palette in turn."""
    styles: dict[str, str] = {}
    for row in result.rows:
        own = _OWN.get(row.method)
        taken = own is None or own in styles.values()
        others = sum(style.startswith("k") for style in styles.values())
        styles[row.id] = f"k{others % PALETTE}" if taken else str(own)
    return styles


def draw_paired(result: BenchResult, column: Column, styles: Mapping[str, str]) -> str | None:
    """Differences to the reference seed by seed, their mean and its 95 % interval; None where nothing is paired."""
    cells = [(row, result.cell(row.id, column.id)) for row in shown_rows(result)]
    pairs = [(row, cell) for row, cell in cells if cell.versus is not None]
    if not pairs:
        return None
    low, high = _find_range([cell for _, cell in pairs])
    drawing = Drawing(WIDTH, len(pairs) * _ROW + 34, f"Difference to the reference, {column.title}")
    scale, bottom = Scale(low, high, _LEFT + 6, WIDTH - _RIGHT), len(pairs) * _ROW + 8
    for tick in choose_ticks(low, high):
        drawing.line(scale(tick), 4, scale(tick), bottom, "grid")
        drawing.text(scale(tick), bottom + 15, _write_tick(tick), "tick", "middle")
    drawing.line(scale(0), 0, scale(0), bottom, "mark")
    for number, (row, cell) in enumerate(pairs):
        _draw_difference(drawing, scale, row, cell, styles[row.id], number * _ROW + 20)
    return drawing.render()


def _find_range(cells: Sequence[Cell]) -> tuple[float, float]:
    """Zero, every difference and, where they are not far out, the intervals' ends."""
    seen = [value for cell in cells if cell.versus for value in cell.versus.differences] + [0.0]
    reach = max(max(seen) - min(seen), 1.0)
    for cell in cells:
        if cell.versus and cell.versus.low is not None and cell.versus.high is not None:
            seen += [max(cell.versus.low, min(seen) - reach), min(cell.versus.high, max(seen) + reach)]
    return min(seen) - 0.05 * reach, max(seen) + 0.05 * reach


def _draw_difference(drawing: Drawing, scale: Scale, row: Row, cell: Cell, style: str, y: float) -> None:
    versus = cell.versus
    assert versus is not None
    if versus.low is not None and versus.high is not None:
        left, right = max(versus.low, scale.low), min(versus.high, scale.high)
        drawing.line(scale(left), y, scale(right), y, f"mean {style}")
        for end, inside in ((left, versus.low >= scale.low), (right, versus.high <= scale.high)):
            if inside:
                drawing.line(scale(end), y - 4, scale(end), y + 4, f"mean {style}")
    for seed, value in zip(versus.seeds, versus.differences, strict=True):
        drawing.dot(scale(value), y, 2.6, f"seed {style}", f"seed {seed}: {write_points(value)}")
    drawing.dot(scale(versus.mean), y, 5, f"dot {style}", f"mean {write_points(versus.mean)}")
    name = wrap(row.title, _NAME, max_lines=2, placeholder="…")
    for line, below in zip(name, (4,) if len(name) == 1 else (-3, 11), strict=True):
        drawing.text(0, y + below, line, "name")
    seeds = f"{versus.seeds_won} of {len(versus.seeds)} ahead"
    drawing.text(WIDTH, y - 3, f"{write_points(versus.mean)} points", "figure", "end")
    drawing.text(WIDTH, y + 11, seeds, "tick", "end")


def _write_tick(value: float) -> str:
    """Whole points without a decimal, zero without a sign."""
    return "0" if abs(value) < 1e-9 else write_points(value).removesuffix(".0")


def draw_along(result: BenchResult, styles: Mapping[str, str]) -> str | None:
    """Accuracy against what the columns stand for (dominant ratio, size of the memory), with the spread over seeds."""
    columns = [column for column in result.columns if column.x is not None and not column.mean_of]
    lines = {row.id: _read_line(result, row, columns) for row in shown_rows(result)}
    lines = {row: line for row, line in lines.items() if line.measured or line.printed}
    if len(columns) < 2 or not any(line.measured for line in lines.values()):
        return None
    values = [v for line in lines.values() for v in line.list_values()]
    pad = max(1.0, 0.06 * (max(values) - min(values)))
    up = Scale(max(0.0, min(values) - pad), min(100.0, max(values) + pad), 196, 10)
    across = _place_columns(columns)
    drawing = Drawing(WIDTH, 240, f"Accuracy against {result.table.x_title or 'the columns'}")
    for tick in choose_ticks(up.low, up.high):
        drawing.line(40, up(tick), WIDTH - 8, up(tick), "grid")
        drawing.text(34, up(tick) + 4, f"{tick:g} %", "tick", "end")
    for column in columns:
        drawing.text(across[column.id], 213, f"{column.x:g}", "tick", "middle")
    drawing.text(WIDTH / 2, 232, result.table.x_title, "tick", "middle")
    for number, (row, line) in enumerate(lines.items()):
        _draw_line(drawing, line, across, up, styles[row], 2.2 * (number - (len(lines) - 1) / 2))
    return drawing.render()


@dataclass(frozen=True)
class _Line:
    """Of one row: cells that are measured, and the paper's numbers, by column in their order."""

    measured: dict[str, Cell]
    printed: dict[str, float]

    def list_values(self) -> list[float]:
        seeds = [value.value for cell in self.measured.values() for value in cell.values]
        ends = [c.mean + s * (c.deviation or 0) for c in self.measured.values() if c.mean is not None for s in (-1, 1)]
        return [*seeds, *ends, *self.printed.values()]


def _read_line(result: BenchResult, row: Row, columns: Sequence[Column]) -> _Line:
    cells = {column.id: result.cell(row.id, column.id) for column in columns}
    printed = {name: cell.paper.value for name, cell in cells.items() if cell.paper.value is not None}
    return _Line({name: cell for name, cell in cells.items() if cell.values}, printed)


def _place_columns(columns: Sequence[Column]) -> dict[str, float]:
    """True to scale where the values lie close together, evenly where they span magnitudes."""
    values = [column.x for column in columns if column.x is not None]
    even = min(values) <= 0 or max(values) / min(values) > 5
    scale = Scale(0, len(columns) - 1, 58, WIDTH - 22) if even else Scale(min(values), max(values), 58, WIDTH - 22)
    return {column.id: scale(number if even else (column.x or 0)) for number, column in enumerate(columns)}


def _draw_line(drawing: Drawing, line: _Line, across: Mapping[str, float], up: Scale, style: str, shift: float) -> None:
    """shift: pixels aside, so that spreads of several rows do not cover each other."""
    if len(line.printed) > 1:
        drawing.path([(across[name], up(value)) for name, value in line.printed.items()], f"printed {style}")
    for part in _split(line.measured, list(across)):
        drawing.path([(across[name] + shift, up(line.measured[name].mean or 0)) for name in part], f"thick {style}")
    for name, cell in line.measured.items():
        x = across[name] + shift
        assert cell.mean is not None
        if cell.deviation is not None:
            ends = [min(max(cell.mean + side * cell.deviation, up.low), up.high) for side in (-1, 1)]
            drawing.line(x, up(ends[0]), x, up(ends[1]), f"mean {style}")
        for value in cell.values:
            drawing.dot(x, up(value.value), 2.2, f"seed {style}", f"seed {value.seed}: {write_share(value.value)} %")
        drawing.dot(x, up(cell.mean), 3.6, f"dot {style}", f"mean {write_share(cell.mean)} %")


def _split(measured: Mapping[str, Cell], columns: Sequence[str]) -> list[list[str]]:
    """Columns that are measured side by side: no line leads over a missing one."""
    parts: list[list[str]] = [[]]
    for name in columns:
        if name in measured:
            parts[-1].append(name)
        else:
            parts.append([])
    return [part for part in parts if part]


def draw_training(curves: Sequence[tuple[str, Sequence[Curve]]], title: str) -> str | None:
    """Shares per epoch: a thin line per seed, a thick one for their mean.   curves: a style and its seeds' curves."""
    points = [point for _, seeds in curves for seed in seeds for point in seed]
    if not points:
        return None
    last = max(epoch for epoch, _ in points)
    low = min(value for _, value in points)
    drawing = Drawing(WIDTH, 196, title)
    across, up = Scale(1, max(last, 2), 40, WIDTH - 8), Scale(10 * (low // 10), 100, 160, 10)
    for tick in choose_ticks(up.low, up.high):
        drawing.line(40, up(tick), WIDTH - 8, up(tick), "grid")
        drawing.text(34, up(tick) + 4, f"{tick:g} %", "tick", "end")
    for style, seeds in curves:
        if len(seeds) > 1:
            for seed in seeds:
                drawing.path([(across(epoch), up(value)) for epoch, value in seed], f"thin {style}")
        drawing.path([(across(epoch), up(value)) for epoch, value in average(seeds)], f"thick {style}")
    for epoch in sorted({1, round((1 + last) / 2), int(last)}):
        drawing.text(across(epoch), 176, str(epoch), "tick", "middle")
    drawing.text(WIDTH / 2, 193, "epoch", "tick", "middle")
    return drawing.render()


def average(seeds: Sequence[Curve]) -> Curve:
    """The mean of the epochs that all seeds have; runs under way are shorter."""
    held = [dict(seed) for seed in seeds]
    epochs = sorted(set.intersection(*(set(seed) for seed in held))) if held else []
    return [(epoch, fmean(seed[epoch] for seed in held)) for epoch in epochs]
