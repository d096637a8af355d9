"""One honest headline, made from the numbers alone."""

from __future__ import annotations

from stablenet.bench import BenchResult
from stablenet.bench.compare import tally
from stablenet.bench.tables import Row
from stablenet.report.gather import Gathered

METHOD = "stablenet"


def write_verdict(gathered: Gathered) -> tuple[str, str]:
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
