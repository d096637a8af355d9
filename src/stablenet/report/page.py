"""The page's values: for every table what its cells show, its charts and its files; the networks looked into."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from markupsafe import Markup

from stablenet._version import __version__
from stablenet.bench import BenchResult, Cell, Column, Row
from stablenet.evaluation.selection import RULES
from stablenet.page import read_text, render
from stablenet.report import charts
from stablenet.report.curves import PARTS, CurveReader
from stablenet.report.details import gather_details, name_cell
from stablenet.report.export import FORMATS
from stablenet.report.gather import Gathered, ReportSettings, has_runs, shown_rows
from stablenet.report.inside import Inside, WeighedRun
from stablenet.report.numbers import differ_in_seeds, name_row, rank_cells, write_points, write_seeds, write_share
from stablenet.report.sample_weights import draw_charts, name_sides
from stablenet.report.verdict import write_verdict

_FULL = 5.0  # points of difference to the paper that are shown in full colour
_FEW = 4  # charts of pairs that are shown at once; further columns open on demand


@dataclass(frozen=True)
class ShownCell:
    """key: of the details.   rank: 1 best, 2 second of its column.   shade: 0 to 1, of the difference's colour."""

    key: str
    cell: Cell
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
    marked: bool
    quoted: bool
    reference: str


def render_page(gathered: Gathered, inside: Sequence[Inside], settings: ReportSettings) -> str:
    reader = CurveReader()
    tables = [_show_table(number, result, reader) for number, result in enumerate(gathered.results)]
    headline, worth = write_verdict(gathered)
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
        marked=any(row.row.needs_domains for row in shown),
        quoted=any(cell.paper.status == "quoted" for cell in cells),
        reference=next((row.title for row in rows if row.id == result.reference), ""),
    )


def _show_cell(
    number: int, result: BenchResult, row: Row, column: Column, ranks: Mapping[tuple[str, str], int]
) -> ShownCell:
    cell = result.cell(row.id, column.id)
    shade = min(abs(cell.difference or 0) / _FULL, 1)
    return ShownCell(name_cell(number, row, column), cell, ranks.get((row.id, column.id), 0), shade)


def _count_groups(columns: Sequence[Column]) -> tuple[tuple[str, int], ...]:
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
            svg = charts.draw_training([(styles[row], found) for row, found in curves.items()], f"Accuracy {what}")
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
