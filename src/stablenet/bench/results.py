"""What a filled table says: every number with the runs behind it. A missing cell is missing, never zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from stablenet.bench.compare import Tally, Versus
from stablenet.bench.scan import Problem
from stablenet.bench.tables import Column, PaperNumber, Row, Table
from stablenet.evaluation.selection import RULES

State = Literal["measured", "missing", "by-design"]


@dataclass(frozen=True, kw_only=True)
class RunRef:
    """A run behind a number. state: finished, not evaluated, running, killed, interrupted or failed.
    command: trains the same run.   epoch: of the chosen model, None before the evaluation.
    """

    path: Path
    seed: int
    state: str
    reason: str
    hash: str
    recipe: str
    epoch: int | None
    config: dict[str, Any]
    command: str
    version: str
    device: str


@dataclass(frozen=True)
class SeedValue:
    """One seed's accuracy in percent. runs: one, or for an average one per averaged column."""

    seed: int
    value: float
    runs: tuple[RunRef, ...]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """values: by rising seed.   reason: why it is missing or empty.   versus: beside the reference row.
    unfinished: runs of this cell that have no figures yet.
    """

    row: str
    column: str
    state: State
    reason: str
    values: tuple[SeedValue, ...]
    unfinished: tuple[RunRef, ...]
    paper: PaperNumber
    versus: Versus | None = None

    @property
    def count(self) -> int:
        """Seeds behind the mean."""
        return len(self.values)

    @property
    def mean(self) -> float | None:
        return fmean(seed.value for seed in self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """Of the sample (n − 1); None below two seeds."""
        return stdev(seed.value for seed in self.values) if self.count > 1 else None

    @property
    def difference(self) -> float | None:
        """The mean minus the paper's figure."""
        return None if self.mean is None or self.paper.value is None else self.mean - self.paper.value

    @property
    def by_seed(self) -> dict[int, float]:
        return {value.seed: value.value for value in self.values}


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """rows: those of the table, then other methods that have runs.   reference: id of the row compared with, or None.
    versions, devices: how many of the runs behind the table come from each.   chosen: what a search chose.
    """

    table: Table
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    rule: str
    tuned: bool
    cells: Mapping[tuple[str, str], Cell]
    tallies: Mapping[str, Tally]
    reference: str | None
    problems: tuple[Problem, ...]
    versions: Mapping[str, int]
    devices: Mapping[str, int]
    chosen: Mapping[str, Any]

    def cell(self, row: str, column: str) -> Cell:
        return self.cells[row, column]

    @property
    def runs(self) -> tuple[RunRef, ...]:
        """Every run behind a number, once."""
        refs = (ref for cell in self.cells.values() for value in cell.values for ref in value.runs)
        return tuple({ref.path: ref for ref in refs}.values())

    @property
    def runs_found(self) -> int:
        return len(self.runs)

    @property
    def budgets(self) -> list[int]:
        """Trials per method of the searches behind the chosen values, each number once."""
        return sorted({found["budget"] for groups in self.chosen.values() for found in groups.values()})

    @property
    def warnings(self) -> list[str]:
        """What a reader of the numbers has to know, a sentence each."""
        told = [f"left out {problem.path}: {problem.reason}" for problem in self.problems]
        if len(self.versions) > 1:
            parts = ", ".join(f"{number} of {name}" for name, number in self.versions.items())
            told.append(f"the runs come from several versions of stablenet: {parts}")
        waiting = {ref.path: ref for cell in self.cells.values() for ref in cell.unfinished}
        told += [f"{path} is {ref.state}" + (f": {ref.reason}" if ref.reason else "") for path, ref in waiting.items()]
        if self.tuned and len(self.budgets) > 1:
            told.append(f"the methods were tuned with unequal budgets: {', '.join(map(str, self.budgets))} trials")
        if RULES[self.rule].looks_at_target:
            told.append("models were selected on the target itself: these are bounds, not results")
        return told
