"""The report's charts, drawn as SVG: tables, training curves, and what entered a run's loss.

Every row of a table has a style of its own, the same in all charts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import pandas as pd

from stablenet.bench import BenchResult, ResultCell, Row, TableColumn
from stablenet.engine.run_folder import RunFolder
from stablenet.files import read_lines
from stablenet.pages import (
    WIDTH,
    Curve,
    Drawing,
    Scale,
    choose_ticks,
    draw_histogram,
    draw_maps,
    draw_percent_grid,
    write_points,
)
from stablenet.pages.plots import LEFT, RIGHT
from stablenet.pages.write import MINUS
from stablenet.report.gather import shown_rows, write_share

PALETTE = 8  # styles k0 … k7 of the page, for rows that have none of their own
_LEFT, _RIGHT, _ROW = 150, 104, 32
_NAME, _LINE = 21, 14  # letters of a line that fit left of a row, and the height of one
_MOST_LINES = 3
_OWN = {"erm": "erm", "stablenet": "stablenet"}


def choose_styles(result: BenchResult) -> dict[str, str]:
    """A style for every row: ERM and StableNet have their own, the others take colours of the palette in turn."""
    styles: dict[str, str] = {}
    for row in result.rows:
        own = _OWN.get(row.method)
        taken = own is None or own in styles.values()
        others = sum(style.startswith("k") for style in styles.values())
        styles[row.id] = f"k{others % PALETTE}" if taken else str(own)
    return styles


def draw_paired(result: BenchResult, column: TableColumn, styles: Mapping[str, str]) -> str | None:
    """Differences to the reference seed by seed, their mean and its 95 % interval; None where nothing is paired."""
    cells = [(row, result.cell(row.id, column.id)) for row in shown_rows(result)]
    pairs = [(row, cell) for row, cell in cells if cell.versus is not None]
    if not pairs:
        return None
    low, high = _find_range([cell for _, cell in pairs])
    names = [wrap(row.title, _NAME, max_lines=_MOST_LINES, placeholder="…") or [row.id] for row, _ in pairs]
    height = max(_ROW, max(map(len, names)) * _LINE + 8)
    drawing = Drawing(WIDTH, len(pairs) * height + 34, f"Difference to the reference, {column.title}")
    scale, bottom = Scale(low, high, _LEFT + 6, WIDTH - _RIGHT), len(pairs) * height + 8
    for tick in choose_ticks(low, high):
        drawing.line(scale(tick), 4, scale(tick), bottom, "grid")
        drawing.text(scale(tick), bottom + 15, _write_tick(tick), "tick", "middle")
    drawing.line(scale(0), 0, scale(0), bottom, "mark")
    for number, (row, cell) in enumerate(pairs):
        y = number * height + 4 + height / 2
        for line, text in enumerate(names[number]):
            drawing.text(0, y + 4 + (line - (len(names[number]) - 1) / 2) * _LINE, text, "name")
        _draw_difference(drawing, scale, cell, styles[row.id], y)
    return drawing.render()


def _find_range(cells: Sequence[ResultCell]) -> tuple[float, float]:
    """Zero, every difference and, where they are not far out, the intervals' ends; half a point each way at least."""
    seen = [value for cell in cells if cell.versus for value in cell.versus.differences] + [0.0]
    reach = max(max(seen) - min(seen), 1.0)
    for cell in cells:
        if cell.versus and cell.versus.low is not None and cell.versus.high is not None:
            seen += [max(cell.versus.low, min(seen) - reach), min(cell.versus.high, max(seen) + reach)]
    return min(min(seen) - 0.05 * reach, -0.5), max(max(seen) + 0.05 * reach, 0.5)


def _draw_difference(drawing: Drawing, scale: Scale, cell: ResultCell, style: str, y: float) -> None:
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
    seeds = f"{versus.seeds_won} of {len(versus.seeds)} ahead"
    drawing.text(WIDTH, y - 3, f"{write_points(versus.mean)} points", "figure", "end")
    drawing.text(WIDTH, y + 11, seeds, "tick", "end")


def _write_tick(value: float) -> str:
    """Points with as many decimals as they need, zero without a sign."""
    return "0" if abs(value) < 1e-9 else f"{value:+.3g}".replace("-", MINUS)


def draw_along(result: BenchResult, styles: Mapping[str, str]) -> str | None:
    """Accuracy against the columns' variable (dominant ratio, size of the memory), with the spread over seeds."""
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
    draw_percent_grid(drawing, up)
    for column in columns:
        drawing.text(across[column.id], 213, f"{column.x:g}", "tick", "middle")
    drawing.text(WIDTH / 2, 232, result.table.x_title, "tick", "middle")
    for number, (row, line) in enumerate(lines.items()):
        _draw_line(drawing, line, across, up, styles[row], 2.2 * (number - (len(lines) - 1) / 2))
    return drawing.render()


@dataclass(frozen=True)
class _Line:
    """Of one row: cells that are measured, and the paper's numbers, by column in their order."""

    measured: dict[str, ResultCell]
    printed: dict[str, float]

    def list_values(self) -> list[float]:
        seeds = [value.value for cell in self.measured.values() for value in cell.values]
        ends = [c.mean + s * (c.deviation or 0) for c in self.measured.values() if c.mean is not None for s in (-1, 1)]
        return [*seeds, *ends, *self.printed.values()]


def _read_line(result: BenchResult, row: Row, columns: Sequence[TableColumn]) -> _Line:
    cells = {column.id: result.cell(row.id, column.id) for column in columns}
    printed = {name: cell.paper.value for name, cell in cells.items() if cell.paper.value is not None}
    return _Line({name: cell for name, cell in cells.items() if cell.values}, printed)


def _place_columns(columns: Sequence[TableColumn]) -> dict[str, float]:
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


def _split(measured: Mapping[str, ResultCell], columns: Sequence[str]) -> list[list[str]]:
    """Columns that are measured side by side: no line leads over a missing one."""
    parts: list[list[str]] = [[]]
    for name in columns:
        if name in measured:
            parts[-1].append(name)
        else:
            parts.append([])
    return [part for part in parts if part]


PARTS = {"train": "in training", "validation": "on held-out images"}


class CurveReader:
    """Reads every run once, however many cells use it."""

    def __init__(self) -> None:
        self._read: dict[Path, dict[str, Curve]] = {}

    def read(self, path: Path) -> Mapping[str, Curve]:
        """Accuracy per epoch by part; a part without figures is empty."""
        if path not in self._read:
            epochs = [record for record in read_lines(RunFolder(path).records) if record["kind"] == "epoch"]
            self._read[path] = {part: _read_part(epochs, part) for part in PARTS}
        return self._read[path]

    def read_column(self, result: BenchResult, column: TableColumn, part: str) -> dict[str, list[Curve]]:
        """The curves of all runs of a column by row, runs under way among them; rows without any are left out."""
        found = {}
        for row in shown_rows(result):
            cell = result.cell(row.id, column.id)
            paths = [ref.path for value in cell.values for ref in value.runs] + [ref.path for ref in cell.unfinished]
            curves = [curve for path in paths if (curve := self.read(path)[part])]
            if curves:
                found[row.id] = curves
        return found


def _read_part(epochs: list[dict[str, Any]], part: str) -> Curve:
    pairs = ((record["epoch"], (record.get(part) or {}).get("accuracy")) for record in epochs)
    return [(epoch, 100 * share) for epoch, share in pairs if share is not None]


def draw_offsets(offsets: Sequence[float]) -> str:
    """Share of the samples by offset of their own class."""
    low, high = min(*offsets, 0.0), max(*offsets, 0.0)
    low, high = (low, high) if high - low > 1e-6 else (-1.0, 1.0)
    ticks = {tick: f"{tick:g}" for tick in choose_ticks(low, high)}
    return draw_histogram(
        {"weights": offsets}, Scale(low, high, LEFT, RIGHT), ticks, "offset of the own class, in nats"
    )


def draw_groups(maps: Mapping[str, pd.DataFrame], name: Callable[[float], str]) -> str:
    """Maps of domains (down) and classes (across); groups without samples stay blank.

    maps: by title, each with a row per domain and a column per class, NaN where there is none.
    name: how the ends of the colours are written.
    """
    first = next(iter(maps.values()))
    below = f"{len(first.columns)} classes across"
    cells = {title: frame.to_numpy().tolist() for title, frame in maps.items()}
    return draw_maps(cells, [str(row) for row in first.index], "Groups of domain and class", below, name)
