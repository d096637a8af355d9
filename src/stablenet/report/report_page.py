"""The report's page: one headline made from the numbers alone, tables with the runs behind every number, charts."""

from __future__ import annotations

import json
import shlex
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from markupsafe import Markup

from stablenet._version import __version__
from stablenet.algorithms import explain_marks
from stablenet.bench import BenchResult, ResultCell, Row, RunRef, TableColumn
from stablenet.bench.cells import flatten
from stablenet.bench.collect import FoundRun
from stablenet.bench.results import tally
from stablenet.engine.config import RunConfig
from stablenet.evaluation.selection import RULES
from stablenet.pages import draw_curves, read_text, render, write_points
from stablenet.report import charts
from stablenet.report.charts import PARTS, CurveReader
from stablenet.report.gather import (
    FORMATS,
    Gathered,
    ReportSettings,
    differ_in_seeds,
    has_runs,
    name_column,
    name_row,
    rank_cells,
    shown_rows,
    write_seeds,
    write_share,
)
from stablenet.report.inside import Inside, WeighedRun, draw_charts, name_sides

METHOD = "stablenet"


def write_headline(gathered: Gathered) -> tuple[str, str]:
    """A headline on StableNet beside the reference, and a sentence on what it rests on."""
    rows = [(result, row) for result in gathered.results if (row := _choose_row(result)) is not None]
    tallies = [result.tallies[row.id] for result, row in rows]
    win, tie, loss = (sum(getattr(tally, name) for tally in tallies) for name in ("win", "tie", "loss"))
    known = win + tie + loss
    if not known:
        numbers = f"{len(gathered.runs)} {_plural('run', len(gathered.runs))}"
        return f"Results of {numbers}", "StableNet and ERM have no two seeds in common yet: nothing can be compared."
    settings = f"{known} {_plural('setting', known)}"
    if win == loss == 0:
        head = f"StableNet and ERM cannot be told apart in {settings}."
    elif win >= loss:
        head = f"StableNet is ahead of ERM in {win} of {settings}, behind in {loss or 'none'}."
    else:
        head = f"StableNet is behind ERM in {loss} of {settings}, ahead in {win or 'none'}."
    rest = f", {tie} cannot be told apart" if tie and (win or loss) else ""
    return head, (
        f"A setting counts where the 95 % interval of the differences, seed by seed, leaves out zero{rest}. "
        f"Few seeds make wide intervals.{_tell_means(rows)}{_name_rows([row.title for _, row in rows])}"
    )


def _choose_row(result: BenchResult) -> Row | None:
    """The StableNet row with the most columns to compare, whatever came out there; None where there is none."""
    rows = [row for row in result.rows if row.method == METHOD and _compared(result, row)]
    return max(rows, key=lambda row: _compared(result, row), default=None)


def _compared(result: BenchResult, row: Row) -> int:
    tally = result.tallies.get(row.id)
    return tally.win + tally.tie + tally.loss if tally is not None else 0


def _tell_means(rows: list[tuple[BenchResult, Row]]) -> str:
    """How the means over settings came out, which are no settings of their own; nothing where there are none."""
    tallies = [
        tally(result.cell(row.id, column.id).versus for column in result.columns if column.mean_of)
        for result, row in rows
    ]
    win, tie, loss = (sum(getattr(each, name) for each in tallies) for name in ("win", "tie", "loss"))
    number = win + tie + loss
    if not number:
        return ""
    means = f"{number} {_plural('mean', number)} over settings"
    return f" Of {means} it is ahead in {win or 'none'}, behind in {loss or 'none'}."


def _name_rows(titles: list[str]) -> str:
    """Which rows of the tables are meant; nothing where all bear the method's plain name."""
    named = list(dict.fromkeys(titles))
    return "" if named == ["StableNet"] else f" StableNet is the row {' or '.join(named)} here."


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def name_cell(table: int, row: Row, column: TableColumn) -> str:
    """The cell's key in the page."""
    return f"{table}/{row.id}/{column.id}"


def gather_details(results: Sequence[BenchResult], runs: Sequence[FoundRun]) -> str:
    """{"cells": {key: …}, "runs": {folder's name: …}} as text that may stand in a script element."""
    refs: dict[str, dict[str, Any]] = {run.path.name: _describe_found(run) for run in runs}
    cells = {}
    for number, result in enumerate(results):
        for row in shown_rows(result):
            for column in result.columns:
                cell = result.cell(row.id, column.id)
                cells[name_cell(number, row, column)] = _describe_cell(result, row, column, cell)
                for ref in (*cell.unfinished, *(ref for value in cell.values for ref in value.runs)):
                    refs[ref.path.name] |= _describe_ref(ref)
    text = json.dumps({"cells": cells, "runs": refs}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")  # no text in it may end the script element


def _describe_cell(result: BenchResult, row: Row, column: TableColumn, cell: ResultCell) -> dict[str, Any]:
    versus = cell.versus
    return {
        "title": f"{row.title}, {name_column(column)}",
        "table": result.table.title,
        "state": cell.state,
        "reason": cell.reason,
        "mean": cell.mean,
        "deviation": cell.deviation,
        "paper": cell.paper.value,
        "quoted": cell.paper.status == "quoted",
        "difference": cell.difference,
        "versus": versus and {"mean": versus.mean, "low": versus.low, "high": versus.high, "seeds": len(versus.seeds)},
        "seeds": [[value.seed, value.value, [ref.path.name for ref in value.runs]] for value in cell.values],
        "unfinished": [ref.path.name for ref in cell.unfinished],
    }


def _describe_found(run: FoundRun) -> dict[str, Any]:
    return {
        "path": str(run.path),
        "seed": run.seed,
        "method": run.config.method.name,
        "state": run.state,
        "reason": run.reason,
        "epoch": run.epoch,
        "hash": run.hash,
        "version": run.version,
        "device": run.device,
        "config": run.config.plain(),
        "command": write_command(run.config),
    }


def write_command(config: RunConfig) -> str:
    """A line that trains the same run without a recipe: every setting that is not the default."""
    changed = _find_changed(config.plain(), RunConfig().plain())
    return shlex.join(["stablenet", "train", *(word for text in flatten(changed) for word in ("--set", text))])


def _find_changed(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name, value in values.items():
        default = defaults.get(name)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            changed[name] = _find_changed(value, default)
        elif value != default:
            changed[name] = value
    return changed


def _describe_ref(ref: RunRef) -> dict[str, Any]:
    return {"command": ref.command, "recipe": ref.recipe}


_FULL = 5.0  # points of difference to the paper that are shown in full colour
_FEW = 4  # charts of pairs that are shown at once; further columns open on demand


@dataclass(frozen=True)
class ShownCell:
    """key: of the details.   rank: 1 best, 2 second of its column.   shade: 0 to 1, of the difference's colour."""

    key: str
    cell: ResultCell
    rank: int
    shade: float


@dataclass(frozen=True)
class ShownRow:
    row: Row
    name: str
    style: str
    cells: tuple[ShownCell, ...]
    tally: Any


@dataclass(frozen=True)
class Chart:
    title: str
    svg: Markup


@dataclass(frozen=True)
class ShownTable:
    """groups: name and number of columns.   along: accuracy against what the columns stand for.
    counted: every number tells its seeds, because they differ.
    files: ending and data URI.   empty: nobody has run anything of it.
    """

    number: int
    result: BenchResult
    rows: tuple[ShownRow, ...]
    groups: tuple[tuple[str, int], ...]
    seeds: str
    counted: bool
    paired: tuple[Chart, ...]
    further: tuple[Chart, ...]
    along: Chart | None
    training: tuple[tuple[str, tuple[Chart, ...]], ...]
    files: tuple[tuple[str, str], ...]
    empty: bool
    unfinished: int
    marks: str
    quoted: bool
    reference: str


def render_page(gathered: Gathered, inside: Sequence[Inside], settings: ReportSettings) -> str:
    reader = CurveReader()
    tables = [_show_table(number, result, reader) for number, result in enumerate(gathered.results)]
    headline, worth = write_headline(gathered)
    values = {
        "version": __version__,
        "made": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        "headline": headline,
        "worth": worth,
        "tables": tables,
        "gathered": gathered,
        "rule": RULES[settings.rule],
        "inside": [_show_inside(found, gathered.results) for found in inside],
        "runs": gathered.runs,
        "style": Markup(read_text("report/style.css")),
        "script": Markup(read_text("report/script.js")),
        "details": Markup(gather_details(gathered.results, gathered.runs)),
    }
    filters = {"share": write_share, "points": write_points}
    return render("report/page.html.jinja", values, filters)


def _show_table(number: int, result: BenchResult, reader: CurveReader) -> ShownTable:
    rows, styles = shown_rows(result), charts.choose_styles(result)
    ranks = rank_cells(result, rows)
    shown = tuple(
        ShownRow(
            row=row,
            name=name_row(row),
            style=styles[row.id],
            cells=tuple(_show_cell(number, result, row, column, ranks) for column in result.columns),
            tally=result.tallies.get(row.id),
        )
        for row in rows
    )
    drawn = _draw_pairs(result, styles)
    along = charts.draw_along(result, styles)
    cells = [shown_cell.cell for row in shown for shown_cell in row.cells]
    return ShownTable(
        number=number,
        result=result,
        rows=shown,
        groups=_count_groups(result.columns),
        seeds=write_seeds(cells),
        counted=differ_in_seeds(cells),
        paired=drawn[:_FEW] if len(drawn) <= _FEW else drawn[:2],
        further=() if len(drawn) <= _FEW else drawn[2:],
        along=None if along is None else Chart(result.table.x_title, Markup(along)),
        training=_draw_training(result, styles, reader),
        files=tuple((ending, _inline(write(result))) for ending, write in FORMATS.items()),
        empty=not has_runs(result),
        unfinished=len({ref.path for cell in cells for ref in cell.unfinished}),
        marks=explain_marks("".join(row.row.marks for row in shown)),
        quoted=any(cell.paper.status == "quoted" for cell in cells),
        reference=next((row.title for row in rows if row.id == result.reference), ""),
    )


def _show_cell(
    number: int, result: BenchResult, row: Row, column: TableColumn, ranks: Mapping[tuple[str, str], int]
) -> ShownCell:
    cell = result.cell(row.id, column.id)
    shade = min(abs(cell.difference or 0) / _FULL, 1)
    return ShownCell(name_cell(number, row, column), cell, ranks.get((row.id, column.id), 0), shade)


def _count_groups(columns: Sequence[TableColumn]) -> tuple[tuple[str, int], ...]:
    """Neighbouring columns of one group together; nothing where no column has a group."""
    if not any(column.group for column in columns):
        return ()
    groups: list[tuple[str, int]] = []
    for column in columns:
        if groups and groups[-1][0] == column.group:
            groups[-1] = (column.group, groups[-1][1] + 1)
        else:
            groups.append((column.group, 1))
    return tuple(groups)


def _draw_pairs(result: BenchResult, styles: Mapping[str, str]) -> tuple[Chart, ...]:
    """Averages first: they say most."""
    ordered = sorted(result.columns, key=lambda column: not column.mean_of)
    drawn = [(f"{c.group} {c.title}".strip(), charts.draw_paired(result, c, styles)) for c in ordered]
    return tuple(Chart(title, Markup(svg)) for title, svg in drawn if svg is not None)


def _draw_training(
    result: BenchResult, styles: Mapping[str, str], reader: CurveReader
) -> tuple[tuple[str, tuple[Chart, ...]], ...]:
    """For every column that holds runs, a chart per part; columns of the same runs (domains of a target) once."""
    drawn: dict[tuple[str, str], tuple[str, tuple[Chart, ...]]] = {}
    for column in result.columns:
        key = (column.recipe, column.config)
        if column.mean_of or key in drawn:
            continue
        pair = []
        for part, what in PARTS.items():
            curves = reader.read_column(result, column, part)
            svg = draw_curves([(styles[row], found) for row, found in curves.items()], f"Accuracy {what}")
            pair += [Chart(f"Accuracy {what}", Markup(svg))] if svg else []
        if pair:
            drawn[key] = (f"{column.group} {column.title}".strip(), tuple(pair))
    return tuple(drawn.values())


def _show_inside(found: Inside, results: Sequence[BenchResult]) -> dict[str, Any]:
    return {
        "found": found,
        "table": next(result.table for result in results if result.table.name == found.table),
        "weighed": [_show_weighed(run) for run in found.weighed],
    }


def _show_weighed(run: WeighedRun) -> dict[str, Any]:
    if run.used is None:
        return {"run": run}
    return {"run": run, "charts": draw_charts(run.used), "sides": [side.capitalize() for side in name_sides(run.used)]}


def _inline(text: str) -> str:
    return f"data:text/plain;charset=utf-8;base64,{b64encode(text.encode()).decode()}"
