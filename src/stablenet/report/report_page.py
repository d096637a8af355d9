"""The whole report: a headline derived only from the numbers, tables with the runs behind every number, charts."""

from __future__ import annotations

import json
import shlex
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from stablenet._version import __version__
from stablenet.algorithms import explain_marks
from stablenet.bench import BenchResult, ResultCell, Row, RunRef, TableColumn
from stablenet.bench.cells import flatten
from stablenet.bench.collect import FoundRun
from stablenet.engine.config import RunConfig
from stablenet.errors import UserError
from stablenet.evaluation.evaluate import RULES
from stablenet.pages import draw_curves, render, write_points, write_text
from stablenet.pages.write import Filters
from stablenet.report import charts
from stablenet.report.charts import PARTS, CurveReader
from stablenet.report.comparisons import count_images, find_gains, name_standing, write_headline, write_mean
from stablenet.report.detail import CellDecisions, list_decisions, look_closer
from stablenet.report.gather import (
    FORMATS,
    Gathered,
    ReportSettings,
    differ_in_seeds,
    gather,
    has_runs,
    name_column,
    name_row,
    rank_cells,
    shown_rows,
    write_seeds,
    write_share,
)
from stablenet.report.inside import Inside, WeighedRun, draw_charts, look_inside, name_sides

SCRIPTS = ("report/script.js",)


def name_cell(table: int, row: Row, column: TableColumn) -> str:
    """The cell's key in the page."""
    return f"{table}/{row.id}/{column.id}"


def gather_details(results: Sequence[BenchResult], runs: Sequence[FoundRun]) -> str:
    """{"cells": {key: …}, "runs": {folder's name: …}} as text that is safe in a script element."""
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
        "preset": run.preset,
        "decided": str(run.decided) if run.decided else "",
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


_FULL, _SHADES = 5.0, 4  # points of difference to the paper that are shown in full colour, and steps up to it
_FEW = 4  # charts of pairs that are shown at once; further columns open on demand


@dataclass(frozen=True)
class ShownCell:
    """key: of the details.   rank: 1 best, 2 second of its column.   shade: style of the difference to the paper."""

    key: str
    cell: ResultCell
    rank: int
    shade: str


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
    """groups: name and number of columns.   along: accuracy against the columns' variable.
    counted: every number states its number of seeds, because these differ.
    files: ending and data URI.   empty: it has no runs.   hidden: rows without runs.
    printed: whether the paper's numbers are shown next to the measured ones.
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
    decisions: tuple[CellDecisions, ...]
    files: tuple[tuple[str, str], ...]
    empty: bool
    hidden: tuple[str, ...]
    printed: bool
    unfinished: int
    marks: str
    quoted: bool
    reference: str


@dataclass(frozen=True)
class Closing:
    """What stands around a report that another command made.   advice: what to do next.   done: what was done.
    pages: other pages in the same folder, by their titles.   commands: that do the same.
    """

    advice: str
    done: str
    pages: Mapping[str, str]
    commands: Sequence[str]


def render_page(
    gathered: Gathered, inside: Sequence[Inside], settings: ReportSettings, closing: Closing | None = None
) -> str:
    reader = CurveReader()
    tables = [_show_table(number, result, reader) for number, result in enumerate(gathered.results)]
    gains = find_gains(gathered.results)
    figures = {run.path: run.figures for run in gathered.runs}
    images = count_images(gains[0], figures) if gains else None
    headline, worth = write_headline(gathered, gains, images)
    values = {
        "version": __version__,
        "made": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        "headline": headline,
        "worth": worth,
        "closing": closing,
        "gains": gains,
        "images": images,
        "details_of": [look_closer(gain, figures, settings.rule) for gain in gains],
        "tables": tables,
        "gathered": gathered,
        "rule": RULES[settings.rule],
        "inside": [_show_inside(found, gathered.results) for found in inside],
        "runs": gathered.runs,
        "details": Markup(gather_details(gathered.results, gathered.runs)),
    }
    filters: Filters = {"share": write_share, "points": write_points, "mean_of": write_mean, "standing": name_standing}
    return render("report/page.html.jinja", values, filters, SCRIPTS)


def _show_table(number: int, result: BenchResult, reader: CurveReader) -> ShownTable:
    empty = not has_runs(result)
    rows = [row for row in shown_rows(result) if empty or has_runs(result, [row])]
    styles = charts.choose_styles(result)
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
        decisions=list_decisions(result),
        files=tuple((ending, _inline(write(result))) for ending, write in FORMATS.items()),
        empty=empty,
        hidden=tuple(name_row(row) for row in shown_rows(result) if row not in rows),
        unfinished=len({ref.path for cell in cells for ref in cell.unfinished}),
        marks=explain_marks("".join(row.row.marks for row in shown)),
        printed=any(cell.difference is not None for cell in cells),
        quoted=any(cell.paper.status == "quoted" for cell in cells),
        reference=next((row.title for row in rows if row.id == result.reference), ""),
    )


def _show_cell(
    number: int, result: BenchResult, row: Row, column: TableColumn, ranks: Mapping[tuple[str, str], int]
) -> ShownCell:
    cell = result.cell(row.id, column.id)
    key = name_cell(number, row, column)
    return ShownCell(key, cell, ranks.get((row.id, column.id), 0), _shade(cell.difference or 0))


def _shade(difference: float) -> str:
    """One of four shades of better and of worse, up1 … up4 and down1 … down4 of the page's style."""
    step = min(1 + int(abs(difference) / _FULL * _SHADES), _SHADES)
    return f"{'up' if difference >= 0 else 'down'}{step}"


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
    """Averages first, as the most informative."""
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


@dataclass(frozen=True)
class Report:
    """What was written.   files: the tables as Markdown, LaTeX and CSV."""

    gathered: Gathered
    inside: tuple[Inside, ...]
    page: Path
    files: tuple[Path, ...]

    @property
    def notes(self) -> list[str]:
        """Remarks for the user, a sentence each."""
        blind = [f"the networks of {found.table} were not examined: {found.failure}" for found in self.inside]
        return [*self.gathered.notes, *(note for note, found in zip(blind, self.inside, strict=True) if found.failure)]


def build_report(settings: ReportSettings, closing: Closing | None = None) -> Report:
    """Read the runs, examine some, and write the page and the tables next to it."""
    gathered = gather(settings)
    inside = look_inside(gathered.results, settings) if settings.panels else []
    text = render_page(gathered, inside, settings, closing)
    try:
        settings.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {settings.output}: {error.strerror}; choose another --output") from error
    write_text(settings.page, text)
    files = []
    for result in gathered.results:
        for ending, write in FORMATS.items():
            files.append(settings.output / f"{result.table.name}.{ending}")
            write_text(files[-1], write(result))
    return Report(gathered, tuple(inside), settings.page, tuple(files))
