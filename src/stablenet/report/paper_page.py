"""The paper's numbers next to ours, cell by cell, as Markdown; what was never run is named.

A table beside the results gets the paper's numbers by what its cells train: the same recipe and the same method.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby

from stablenet.bench import BenchResult, PaperTable, ResultCell, Row, TableColumn, find_table
from stablenet.bench.results import list_items
from stablenet.errors import UserError
from stablenet.pages import write_points
from stablenet.report.gather import BY_DESIGN, QUOTED, name_row, write_spread
from stablenet.weighting import recommended

NOT_RUN = "not run"
Cell = tuple[str, str]  # row and column


def write_comparison(results: Sequence[BenchResult]) -> str:
    """A page for results beside the paper's: every table by its column groups, the gains, and what was never run."""
    lines = ["# The paper's tables, its numbers next to ours", ""]
    lines += [
        "Every cell: the paper's number, then ours: mean ± sample standard deviation, seeds in brackets; in "
        f"parentheses ours minus the paper's. Accuracy in %; {BY_DESIGN} empty by design; {QUOTED} quoted by the paper "
        "from elsewhere; * learns from domain labels. The epoch is chosen on source validation.",
        "",
        "Where network, pixels or schedule are not the paper's, the table says so, and a single number says little. "
        "What can be compared is the gain over plain training, given below each table: on the seeds that both have, "
        "with a 95 % interval.",
    ]
    for result in results:
        groups = [(group, list(columns)) for group, columns in groupby(result.columns, lambda column: column.group)]
        there = [(group, columns) for group, columns in groups if _has_values(result, columns)]
        if there:
            lines += ["", *_introduce(result)]
        for group, columns in there:
            lines += ["", f"### {group or find_origins(result.table) or result.table.title}", ""]
            lines += _tabulate(result, columns)
    lines += [
        "",
        "## Never run",
        "",
        *_name_missing(results),
        "",
        "## Prepared, to be run",
        "",
        *_name_prepared(results),
    ]
    own = ",".join(result.table.path.as_posix() for result in results if result.table.path)
    tables = f" --tables {own}" if own else ""
    lines += ["", "This page again, from the folder `runs`:", ""]
    return "\n".join([*lines, "```bash", f"stablenet paper --page PAGE{tables} --root DATA", "```"]) + "\n"


def _introduce(result: BenchResult) -> list[str]:
    lines = [f"## {result.table.title}", "", result.table.caption, "", *(f"- {note}" for note in _tell_about(result))]
    return [*lines, "", "```bash", f"{_write_command(result.table)} --root DATA", "```"]


def _has_values(result: BenchResult, columns: Sequence[TableColumn]) -> bool:
    return any(result.cell(row.id, column.id).values for row in result.table.rows for column in columns)


def lend_numbers(table: PaperTable) -> PaperTable:
    """A table of one's own with the paper's numbers, and only the rows that are in the paper's tables.

    Of StableNet, the preset `paper` is the paper's row; other presets stay, without a number of the paper.
    """
    if table.path is None:
        return table
    printed = find_printed(table)
    if not printed:
        raise UserError(
            f"the table {table.path} trains nothing that the paper has a number for: its columns need recipes of the "
            "paper's tables, and its rows their methods (`stablenet bench list`)"
        )
    extras = {row.id for name, _, _ in printed.values() for row in find_table(name).rows if row.extra}
    with_numbers = {row for row, _ in printed}
    rows = tuple(row for row in table.rows if row.id in with_numbers | extras)
    numbers = {cell: find_table(name).number(row, column) for cell, (name, row, column) in printed.items()}
    return replace(table, rows=rows, paper=numbers | dict(table.paper))


def find_printed(table: PaperTable) -> dict[Cell, tuple[str, str, str]]:
    """Cells that train what a table of the paper prints a number for -> that table's name, row and column."""
    index = _index_printed()
    found = {}
    for row in table.rows:
        for column in table.columns:
            printed = index.get((_describe_row(row), _describe_column(table, column)))
            if printed is not None:
                found[row.id, column.id] = printed
    return found


def find_origins(table: PaperTable) -> str:
    """Titles of the paper's tables whose numbers an own one has; empty for the paper's."""
    names = dict.fromkeys(name for name, _, _ in find_printed(table).values()) if table.path is not None else ()
    return ", ".join(f"{find_table(name).title} ({name})" for name in names)


@cache
def _index_printed() -> Mapping[tuple[Hashable, Hashable], tuple[str, str, str]]:
    return {
        (_describe_row(row), _describe_column(table, column)): (table.name, row.id, column.id)
        for table in _list_printed()
        for row in table.rows
        for column in table.columns
        if table.number(row.id, column.id).value is not None
    }


def _list_printed() -> list[PaperTable]:
    """The paper's tables with numbers, in its order."""
    tables = [find_table(name) for item in list_items() for name in item.tables]
    return [table for table in tables if table.label.startswith("tab:")]


def _describe_row(row: Row) -> Hashable:
    return row.method, row.parameters.get("preset", recommended.NAME) if row.method == "stablenet" else ""


def _describe_column(table: PaperTable, column: TableColumn) -> Hashable:
    if column.mean_of:
        return frozenset(_describe_column(table, table.find_column(name)) for name in column.mean_of)
    return column.recipe, column.domain, column.metric


def _tell_about(result: BenchResult) -> list[str]:
    """The table's notes and what is said of its runs; of a run that cannot be read, nothing here."""
    warnings = [warning for warning in result.warnings if not warning.startswith("left out")]
    used = ", ".join(f"{number} on {name}" for name, number in result.devices.items())
    return [*result.table.notes, *warnings, *([f"runs: {used}"] if used else [])]


def _write_command(table: PaperTable) -> str:
    return f"stablenet bench run {table.path.as_posix() if table.path else table.name}"


def _tabulate(result: BenchResult, columns: Sequence[TableColumn]) -> Iterator[str]:
    yield "| method | " + " | ".join(column.title for column in columns) + " |"
    yield "|---|" + "---:|" * len(columns)
    rows = [row for row in result.table.rows if any(_says_something(result.cell(row.id, c.id)) for c in columns)]
    for row in rows:
        cells = [_write_cell(result.cell(row.id, column.id)) for column in columns]
        yield f"| {name_row(row)} | " + " | ".join(cells) + " |"
    for column in _choose_compared(columns):
        gains = [line for row in rows if (line := _write_gain(result, row, column))]
        if gains:
            yield ""
            yield f"Gain over plain training, {column.title.rstrip('.').lower()}: " + "; ".join(gains) + "."


def _choose_compared(columns: Sequence[TableColumn]) -> list[TableColumn]:
    """Means where there are some, else everything that is not of a single domain."""
    return [column for column in columns if column.mean_of] or [column for column in columns if not column.domain]


def _says_something(cell: ResultCell) -> bool:
    return bool(cell.values) or cell.paper.value is not None


def _write_cell(cell: ResultCell) -> str:
    if cell.state == "by-design":
        return BY_DESIGN
    printed = "" if cell.paper.value is None else f"{cell.paper.value:.2f}" + QUOTED * (cell.paper.status == "quoted")
    if not cell.values:
        return f"{printed} / {NOT_RUN}" if printed else NOT_RUN
    ours = f"**{write_spread(cell, counted=True)}**"
    return f"{printed} / {ours} ({write_points(cell.difference)})" if cell.difference is not None else ours


def _write_gain(result: BenchResult, row: Row, column: TableColumn) -> str:
    """ "StableNet: paper +6.7, ours −1.2 [−1.8, −0.5]"; empty where there is nothing to say."""
    if result.reference is None or row.id == result.reference:
        return ""
    cell, plain = result.cell(row.id, column.id), result.cell(result.reference, column.id)
    parts = []
    if cell.paper.value is not None and plain.paper.value is not None:
        parts.append(f"paper {write_points(cell.paper.value - plain.paper.value)}")
    if cell.versus is not None:
        interval = ""
        if cell.versus.low is not None and cell.versus.high is not None:
            interval = f" [{write_points(cell.versus.low)}, {write_points(cell.versus.high)}]"
        parts.append(f"ours {write_points(cell.versus.mean)}{interval}")
    return f"{name_row(row)}: {', '.join(parts)}" if cell.versus is not None else ""


def _name_missing(results: Sequence[BenchResult]) -> Iterator[str]:
    """By table of the paper its cells without any run, then its figures."""
    there = set()
    for result in results:
        printed = find_printed(result.table)
        there |= {printed[cell] for cell in printed if cell in result.cells and result.cells[cell].values}
    yield "Of the paper's numbers, these have nothing of ours beside them, in no setting:"
    yield ""
    for table in _list_printed():
        left = [f"{where}: {', '.join(rows)}" for where, rows in _collect_missing(table, there).items()]
        if left:
            yield f"- {table.title} ({table.name}): {'; '.join(left)}"
    figures = [item for item in list_items() if any(find_table(name).label == "fig:ablation" for name in item.tables)]
    for item in figures:
        yield f"- {item.name} as printed, {item.what}; it needs {', '.join(item.needs)}. {_end(item.state)}"


def _collect_missing(table: PaperTable, there: set[tuple[str, str, str]]) -> dict[str, list[str]]:
    """Groups, or single columns of them -> rows that have a printed number there and no run."""
    missing = defaultdict(list)
    for row in table.rows:
        for group, columns in groupby(table.columns, lambda column: column.group):
            known = [column for column in columns if table.number(row.id, column.id).value is not None]
            left = [column for column in known if (table.name, row.id, column.id) not in there]
            if left:
                names = "" if left == known else ", ".join(column.title.rstrip(".") for column in left)
                missing[" ".join(part for part in (group or "all columns" * (not names), names) if part)].append(
                    name_row(row)
                )
    return missing


def _name_prepared(results: Sequence[BenchResult]) -> Iterator[str]:
    """Tables that come with the package and still lack runs, with their cost; one command each runs the rest."""
    for result in (result for result in results if result.table.path is None):
        cells = [
            result.cell(row.id, column.id)
            for row in result.table.rows
            for column in result.columns
            if not (row.extra or column.mean_of or column.empty)
        ]
        left = sum(not cell.values for cell in cells)
        if left:
            cost = "" if result.table.hours is None else f", about {result.table.hours:.1f} GPU hours for all of it"
            yield f"- `{_write_command(result.table)} --root DATA`: {left} of {len(cells)} cells{cost}"


def _end(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""
