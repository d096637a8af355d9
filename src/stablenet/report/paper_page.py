"""The paper's numbers beside ours, cell by cell, as Markdown; what was never run is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from stablenet.bench import BenchResult, ResultCell, Row, TableColumn
from stablenet.bench.results import list_items
from stablenet.pages import write_points
from stablenet.report.gather import BY_DESIGN, QUOTED, name_row, write_spread

NOT_RUN = "not run"


def write_comparison(results: Sequence[BenchResult]) -> str:
    """A page for results beside the paper's: every table by its column groups, the gains, and what was never run."""
    lines = ["# The paper's tables, its numbers beside ours", ""]
    lines += [
        "Every cell: the paper's number, then ours: mean ± sample standard deviation, seeds in brackets; in "
        f"parentheses ours minus the paper's. Accuracy in %; {BY_DESIGN} empty by design; {QUOTED} quoted by the paper "
        "from elsewhere; * learns from domain labels. The epoch is chosen on source validation.",
        "",
        "Another network, other pixels and a shorter schedule than the paper's: a single number says little. What can "
        "be compared is the gain over plain training, given below each table.",
    ]
    for result in results:
        lines += ["", f"## {result.table.title}", "", result.table.caption, ""]
        lines += [f"- {note}" for note in result.table.notes]
        lines += ["", "```bash", f"stablenet bench run {result.table.name} --root DATA", "```"]
        for group, columns in groupby(result.columns, lambda column: column.group):
            lines += ["", f"### {group or result.table.title}", "", *_tabulate(result, list(columns))]
    return "\n".join([*lines, "", "## Never run", "", *_name_missing(results)]) + "\n"


def _tabulate(result: BenchResult, columns: Sequence[TableColumn]) -> Iterator[str]:
    yield "| method | " + " | ".join(column.title for column in columns) + " |"
    yield "|---|" + "---:|" * len(columns)
    rows = [row for row in result.rows if any(_says_something(result.cell(row.id, c.id)) for c in columns)]
    for row in rows:
        cells = [_write_cell(result.cell(row.id, column.id)) for column in columns]
        yield f"| {name_row(row)} | " + " | ".join(cells) + " |"
    gains = [line for row in rows if (line := _write_gain(result, row, columns[-1]))]
    if gains:
        yield ""
        yield f"Gain over plain training, {columns[-1].title.rstrip('.').lower()}: " + "; ".join(gains) + "."


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
    told = []
    if cell.paper.value is not None and plain.paper.value is not None:
        told.append(f"paper {write_points(cell.paper.value - plain.paper.value)}")
    if cell.versus is not None:
        interval = ""
        if cell.versus.low is not None and cell.versus.high is not None:
            interval = f" [{write_points(cell.versus.low)}, {write_points(cell.versus.high)}]"
        told.append(f"ours {write_points(cell.versus.mean)}{interval}")
    return f"{name_row(row)}: {', '.join(told)}" if cell.versus is not None else ""


def _name_missing(results: Sequence[BenchResult]) -> Iterator[str]:
    """Cells without a run by row, then everything of the paper that has no result of its own."""
    for result in results:
        wanted = [row for row in result.table.rows if not row.extra]
        for row in wanted:
            cells = [result.cell(row.id, column.id) for column in result.columns if not column.mean_of]
            cells = [cell for cell in cells if cell.state != "by-design"]
            missing = [cell.column for cell in cells if not cell.values]
            if missing:
                which = "every column" if len(missing) == len(cells) else ", ".join(missing)
                yield f"- {result.table.name}, {name_row(row)}: {which}"
    for item in list_items():
        if item.tables:
            needs = f"; it needs {', '.join(item.needs)}" if item.needs else ""
            yield f"- {item.name} as printed, {item.what}{needs}. {_end(item.state)}"


def _end(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""
