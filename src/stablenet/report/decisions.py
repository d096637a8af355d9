"""What a method decided before training, whether to act, by row and column of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stablenet.bench.results import BenchResult, ResultCell
from stablenet.engine.run import Decided


@dataclass(frozen=True)
class CellDecisions:
    """acted: how many of the runs act.   reasons: the distinct ones, with the number of runs that gave them."""

    row: str
    column: str
    runs: int
    acted: int
    reasons: tuple[tuple[str, int], ...]


def list_decisions(result: BenchResult) -> tuple[CellDecisions, ...]:
    """Of every cell some of whose runs decided; columns of other metrics of the same runs are left out."""
    return tuple(_collect(result))


def _collect(result: BenchResult) -> Iterable[CellDecisions]:
    for row in result.rows:
        seen = set()
        for column in result.columns:
            decided = _read(result.cell(row.id, column.id))
            if not decided or column.mean_of or frozenset(decided) in seen:
                continue
            seen.add(frozenset(decided))
            found = list(decided.values())
            name = f"{column.group}: {column.title}" if column.group else column.title
            reasons = Counter(each.reason for each in found).most_common()
            yield CellDecisions(row.title, name, len(found), sum(each.acts for each in found), tuple(reasons))


def _read(cell: ResultCell) -> dict[Path, Decided]:
    refs = (ref for value in cell.values for ref in value.runs)
    return {ref.path: ref.decided for ref in refs if ref.decided is not None}
