"""One honest headline, made from the numbers alone."""

from __future__ import annotations

from stablenet.bench import BenchResult
from stablenet.report.gather import Gathered

METHOD = "stablenet"


def write_verdict(gathered: Gathered) -> tuple[str, str]:
    """A headline on StableNet beside the reference, and a sentence on what it rests on."""
    counts = [found for result in gathered.results if (found := _count(result)) is not None]
    win, tie, loss = (sum(count[place] for count in counts) for place in range(3))
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
        "Few seeds make wide intervals."
    )


def _count(result: BenchResult) -> tuple[int, int, int] | None:
    """Of the table's first StableNet row with something to compare; None where there is none."""
    for row in result.rows:
        tally = result.tallies.get(row.id)
        if row.method == METHOD and tally is not None and tally.win + tally.tie + tally.loss:
            return tally.win, tally.tie, tally.loss
    return None


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
