"""What `stablenet bench` prints: tables for the terminal, and progress while runs are under way."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer
from rich import box
from rich.table import Table as Grid
from rich.text import Text

from stablenet.errors import INTERRUPTED
from stablenet.long_work import format_time

if TYPE_CHECKING:
    from stablenet.bench import BenchResult, PaperNumber, PaperTable, ResultCell, Row, TableColumn
    from stablenet.bench.executors import Event
    from stablenet.bench.plan import Plan, PlannedRun, TablePart
    from stablenet.bench.search import Found

MISSING, BY_DESIGN = "·", "–"


def tabulate_tables() -> Grid:
    from stablenet.bench.paper_tables import list_tables

    grid = Grid("table", "what", "rows", "columns", "runs per seed", title="tables", box=box.SIMPLE)
    for name, table in list_tables().items():
        rows = [row for row in table.rows if not row.extra]
        recipes = {(row.id, row.recipe or column.recipe) for row in rows for column in table.columns if column.recipe}
        grid.add_row(name, table.title, str(len(rows)), str(len(table.columns)), str(len(recipes)))
    return grid


def tabulate_paper(table: PaperTable) -> Grid:
    """The paper's numbers: best in bold, second best underlined, quoted in italics."""
    from stablenet.algorithms import explain_marks

    grid = _start(f"{table.title} (the paper's numbers)", table.columns)
    for row in table.rows:
        grid.add_row(_name(row), *(_show_number(table.number(row.id, column.id)) for column in table.columns))
    marks = explain_marks("".join(row.marks for row in table.rows))
    grid.caption = "bold: best, underlined: second, italic: quoted by the paper" + (f"\n{marks}" if marks else "")
    return grid


def tabulate_plan(plan: Plan) -> Grid:
    """One line per row of the table."""
    grid = Grid("row", "runs", "finished", "left", "time left", title=plan.table.title, box=box.SIMPLE)
    for row in dict.fromkeys(row for run in plan.runs for row, _ in run.cells):
        runs = [run for run in plan.runs if any(row == name for name, _ in run.cells)]
        left = [run for run in runs if run.left]
        finished = sum(run.state == "finished" for run in runs)
        grid.add_row(row, str(len(runs)), str(finished), str(len(left)), _sum_times(left))
    return grid


def list_runs(plan: Plan) -> Iterator[str]:
    for run in plan.runs:
        yield f"{run.folder.name}  {run.state}  {_sum_times([run])}\n    {run.run.command}"


def describe_time(plan: Plan, at_once: int) -> str:
    """A one-line summary: how many runs are left and how long they take."""
    left, unknown = len(plan.left), len(plan.unmeasured)
    text = f"{len(plan.runs)} runs, {left} left"
    if left > unknown:
        together = plan.seconds / max(1, min(at_once, left))
        text += f": about {format_time(plan.seconds)} one by one, {format_time(together)} with {at_once} at once here"
    if unknown:
        text += f"; {unknown} of them have no measured time on this machine: run one to get an estimate"
    return text


def tabulate_result(result: BenchResult, choice: TablePart) -> Grid:
    """Mean ± sample standard deviation, and how many of the requested seeds have finished."""
    from stablenet.bench.cells import choose_rows
    from stablenet.bench.plan import find_columns
    from stablenet.evaluation.evaluate import RULES

    title = f"{result.table.title}: accuracy in %, rule {RULES[result.rule].name}" + (", tuned" if result.tuned else "")
    title += " (needs group labels)" if RULES[result.rule].needs_groups else ""
    columns = find_columns(result.table, choice.columns)
    asked = {row.id for row in choose_rows(result.table, choice.methods)} if choice.methods else None
    grid = _start(title, columns)
    if result.reference is not None:
        grid.add_column("beside\nERM", justify="right")
    for row in result.rows:
        if asked is not None and row.id not in asked:
            continue
        cells = [_show_cell(result.cell(row.id, column.id), len(choice.seeds)) for column in columns]
        grid.add_row(_name(row), *cells, *_show_tally(result, row.id))
    seeds = ", ".join(map(str, choice.seeds))
    grid.caption = (
        f"seeds {seeds}; {MISSING} missing, {BY_DESIGN} empty by design; against ERM: wins-ties-losses per column"
    )
    return grid


def tabulate_progress(runs: Path) -> Grid:
    """How many cells of every table have runs."""
    from stablenet.bench import collect, list_tables
    from stablenet.bench.collect import scan_runs

    scan = scan_runs(runs)
    grid = Grid("table", "cells measured", "missing", "runs", "unfinished", title=f"tables in {runs!s}")
    for name, table in list_tables().items():
        result = collect(table, runs, scan=scan)
        states = Counter(cell.state for cell in result.cells.values())
        unfinished = {ref.path for cell in result.cells.values() for ref in cell.unfinished}
        grid.add_row(
            name, str(states["measured"]), str(states["missing"]), str(result.runs_found), str(len(unfinished))
        )
    if scan.problems:
        grid.caption = (
            f"{len(scan.problems)} run folders cannot be read: {', '.join(p.path.name for p in scan.problems)}"
        )
    return grid


def tabulate_search(searches: Sequence[Found]) -> Grid:
    from stablenet.bench.cells import flatten

    grid = Grid("row", "group", "trials", "failed", "recipe", "best", "chosen values", title="source validation, %")
    for found in searches:
        scores = [trial.score for trial in found.trials]
        best = found.best
        assert best is not None
        grid.add_row(
            found.row.id,
            found.group or "all",
            str(len(scores)),
            str(scores.count(None)),
            "failed" if scores[0] is None else f"{scores[0]:.1f}",
            f"{best.score:.1f}",
            "\n".join(flatten(best.values)) or "the recipe's values",
        )
    return grid


def _start(title: str, columns: Sequence[TableColumn]) -> Grid:
    grid = Grid(title=title, box=box.SIMPLE, title_justify="left", caption_justify="left")
    grid.add_column("")
    for column in columns:
        grid.add_column(f"{column.group}\n{column.title}" if column.group else column.title, justify="right")
    return grid


def _name(row: Row) -> str:
    return row.title + row.marks + ("\n(approximation)" if row.approximation else "")


def _show_number(number: PaperNumber) -> str | Text:
    if number.value is None:
        return "-" if number.status == "dash" else ""
    style = " ".join(
        word
        for word, holds in (("bold", number.best), ("underline", number.second), ("italic", number.status == "quoted"))
        if holds
    )
    return Text(f"{number.value:.2f}", style)


def _show_cell(cell: ResultCell, wanted: int) -> str | Text:
    if cell.state == "by-design":
        return BY_DESIGN
    waiting = Counter(ref.state for ref in cell.unfinished)
    text = "".join(f"\n{number} {state}" for state, number in waiting.items())
    if cell.mean is None:
        return MISSING + text
    spread = "" if cell.deviation is None else f" ± {cell.deviation:.1f}"
    return Text.assemble(f"{cell.mean:.1f}{spread}\n", (f"{cell.count}/{wanted}", "dim"), text)


def _show_tally(result: BenchResult, row: str) -> Iterable[str]:
    if result.reference is None:
        return ()
    if row not in result.tallies:
        return ("",)
    tally = result.tallies[row]
    return (f"{tally.win}-{tally.tie}-{tally.loss}" if tally.win + tally.tie + tally.loss else MISSING,)


def _sum_times(runs: Sequence[PlannedRun]) -> str:
    known = [run.seconds for run in runs if run.seconds is not None]
    if len(known) < len(runs):
        return "not measured" if not known else f"{format_time(sum(known))} + {len(runs) - len(known)} not measured"
    rough = any(run.left and run.estimate is not None and run.estimate.basis == "similar" for run in runs)
    elsewhere = sorted({run.estimate.device for run in runs if run.left and run.estimate is not None})
    return ("about " if rough else "") + format_time(sum(known)) + (f" ({', '.join(elsewhere)})" if elsewhere else "")


class EventPrinter:
    """Prints one line per event, except epochs, to the error stream."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0

    def __call__(self, event: Event) -> None:
        if event.kind == "start":
            typer.echo(f"started   {event.order.name} on {event.where}", err=True)
        elif event.kind == "retry":
            typer.echo(f"again     {event.order.name}: its worker died, resuming from its checkpoint", err=True)
        elif event.kind != "epoch":
            self._done += 1
            why = f": {event.reason}" if event.reason else ""
            typer.echo(f"{event.kind:9} {event.order.name} ({self._done}/{self._total}){why}", err=True)


@contextmanager
def interruptible() -> Iterator[None]:
    """On Ctrl-C or termination, workers write their checkpoints, then the command ends."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped; run the same command again to resume", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
