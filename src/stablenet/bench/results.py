"""A filled table: every number with its runs, comparisons of methods by seed, and the list of what the paper shows."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from stablenet.bench.paper_tables import PaperNumber, PaperTable, Row, TableColumn
from stablenet.engine.run import Decided
from stablenet.evaluation.evaluate import RULES
from stablenet.metrics import compare_pairs
from stablenet.values import NonNegative, check_fields, read_fields
from stablenet.weighting.recommended import CURRENT

State = Literal["measured", "missing", "by-design"]


@dataclass(frozen=True)
class LeftOut:
    """A run folder that was left out, and the reason."""

    path: Path
    reason: str


@dataclass(frozen=True, kw_only=True)
class RunRef:
    """A run used for a number. state: finished, not evaluated, running, killed, interrupted or failed.
    command: trains the same run.   epoch: of the chosen model, None before the evaluation.
    preset: version of the method's defaults it was begun with, "" if there is one only.   decided: before training.
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
    preset: str = ""
    decided: Decided | None = None


@dataclass(frozen=True)
class SeedValue:
    """The accuracy of one seed in percent. runs: one, or for an average one per averaged column."""

    seed: int
    value: float
    runs: tuple[RunRef, ...]


@dataclass(frozen=True, kw_only=True)
class ResultCell:
    """values: in order of seeds.   reason: why it is missing or empty.   versus: comparison with the reference row.
    unfinished: runs of this cell without results.
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
        """Number of seeds in the mean."""
        return len(self.values)

    @property
    def mean(self) -> float | None:
        return fmean(seed.value for seed in self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation (n − 1); None for fewer than two seeds."""
        return stdev(seed.value for seed in self.values) if self.count > 1 else None

    @property
    def difference(self) -> float | None:
        """The mean minus the paper's number."""
        return None if self.mean is None or self.paper.value is None else self.mean - self.paper.value

    @property
    def by_seed(self) -> dict[int, float]:
        return {value.seed: value.value for value in self.values}


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """rows: those of the table, then other methods with runs.   reference: id of the row to compare with, or None.
    versions, devices: number of the table's runs by version and device.   chosen: values chosen by searches.
    """

    table: PaperTable
    rows: tuple[Row, ...]
    columns: tuple[TableColumn, ...]
    rule: str
    tuned: bool
    cells: Mapping[tuple[str, str], ResultCell]
    tallies: Mapping[str, Tally]
    reference: str | None
    problems: tuple[LeftOut, ...]
    versions: Mapping[str, int]
    devices: Mapping[str, int]
    chosen: Mapping[str, Any]

    def cell(self, row: str, column: str) -> ResultCell:
        return self.cells[row, column]

    @property
    def runs(self) -> tuple[RunRef, ...]:
        """Every run used for a number, once."""
        refs = (ref for cell in self.cells.values() for value in cell.values for ref in value.runs)
        return tuple({ref.path: ref for ref in refs}.values())

    @property
    def runs_found(self) -> int:
        return len(self.runs)

    @property
    def budgets(self) -> list[int]:
        """The distinct numbers of trials per method in the searches."""
        return sorted({found["budget"] for groups in self.chosen.values() for found in groups.values()})

    @property
    def warnings(self) -> list[str]:
        """Remarks for readers of the numbers, one sentence each."""
        notes = [f"left out {problem.path}: {problem.reason}" for problem in self.problems]
        if len(self.versions) > 1:
            parts = ", ".join(f"{number} of {name}" for name, number in self.versions.items())
            notes.append(f"the runs come from several versions of stablenet: {parts}")
        earlier = Counter(ref.preset for ref in self.runs if ref.preset not in ("", CURRENT))
        notes += [f"{number} runs were made by version {name} of their preset" for name, number in earlier.items()]
        waiting = {ref.path: ref for cell in self.cells.values() for ref in cell.unfinished}
        notes += [f"{path} is {ref.state}" + (f": {ref.reason}" if ref.reason else "") for path, ref in waiting.items()]
        if self.tuned and len(self.budgets) > 1:
            notes.append(f"the methods were tuned with unequal budgets: {', '.join(map(str, self.budgets))} trials")
        rules = [RULES[name] for name in dict.fromkeys((self.rule, *(row.rule for row in self.rows if row.rule)))]
        notes += [rule.demand for rule in rules if rule.demand]
        if any(rule.looks_at_target for rule in rules):
            notes.append("models were selected on the target itself: these are upper bounds, not results")
        return notes


Standing = Literal["win", "tie", "loss"]
ALIKE = 1e-9  # points: differences of rounding
# With two seeds the interval is 9 times the deviation to either side; of 50 images an accuracy is known to ±14 points.
ENOUGH_SEEDS, ENOUGH_IMAGES = 3, 50


@dataclass(frozen=True, kw_only=True)
class Versus:
    """A method's accuracy minus the reference's, in points, for their common seeds.

    low, high: 95 % confidence interval of the mean difference by Student's t; None for one seed.
    verdict: win or loss if the interval excludes zero, else a tie; None for one seed, and where all seeds differ by the
    same, from which no interval can be estimated.
    """

    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    mean: float
    deviation: float | None
    low: float | None
    high: float | None
    verdict: Standing | None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends; None where it cannot be estimated."""
        if self.low is None or self.high is None or self.high - self.low < ALIKE:
            return None
        return self.low, self.high

    def is_enough(self, images: int) -> bool:
        """Whether these seeds, each with so many test images, can carry a verdict of gain or loss."""
        return len(self.seeds) >= ENOUGH_SEEDS and images >= ENOUGH_IMAGES

    @property
    def seeds_won(self) -> int:
        return sum(value > 0 for value in self.differences)

    @property
    def seeds_tied(self) -> int:
        return sum(value == 0 for value in self.differences)

    @property
    def seeds_lost(self) -> int:
        return sum(value < 0 for value in self.differences)


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Number of columns of a row by verdict, without averages; unknown: columns that cannot be compared yet.
    seeds_…: number of single seeds over all these columns.
    """

    win: int = 0
    tie: int = 0
    loss: int = 0
    unknown: int = 0
    seeds_won: int = 0
    seeds_tied: int = 0
    seeds_lost: int = 0


def compare_seeds(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Versus | None:
    """Compare a method with the reference, both given as seed -> percent; None without common seeds."""
    seeds = tuple(sorted(set(ours) & set(theirs)))
    if not seeds:
        return None
    if len(seeds) == 1:
        difference = ours[seeds[0]] - theirs[seeds[0]]
        return Versus(
            seeds=seeds,
            differences=(difference,),
            mean=difference,
            deviation=None,
            low=None,
            high=None,
            verdict=None,
        )
    paired = compare_pairs([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds])
    verdict: Standing | None = "tie" if not paired.is_clear else "win" if paired.low > 0 else "loss"
    if verdict != "tie" and paired.high - paired.low < ALIKE:
        verdict = None
    return Versus(
        seeds=seeds,
        differences=paired.differences.values,
        mean=paired.differences.mean,
        deviation=paired.differences.deviation,
        low=paired.low,
        high=paired.high,
        verdict=verdict,
    )


def tally(comparisons: Iterable[Versus | None]) -> Tally:
    """Count verdicts. comparisons: one per column with runs."""
    there = list(comparisons)
    verdicts = [None if versus is None else versus.verdict for versus in there]
    known = [versus for versus in there if versus is not None]
    return Tally(
        win=verdicts.count("win"),
        tie=verdicts.count("tie"),
        loss=verdicts.count("loss"),
        unknown=verdicts.count(None),
        seeds_won=sum(versus.seeds_won for versus in known),
        seeds_tied=sum(versus.seeds_tied for versus in known),
        seeds_lost=sum(versus.seeds_lost for versus in known),
    )


@dataclass(frozen=True, kw_only=True)
class PaperItem:
    """tables: filled by `stablenet bench`.   near: the same comparison on other data, or with another network.
    needs: data sources and weights.   hours: of a GPU, see the file; None where nothing is trained.
    measured: what has been run for this project; empty for nothing.
    """

    name: str
    what: str
    command: str = ""
    tables: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    hours: NonNegative | None = None
    measured: str = ""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def commands(self) -> tuple[str, ...]:
        """What reproduces it, then what comes near it."""
        runs = [f"stablenet bench run {table}" for table in (*self.tables, *self.near)]
        return (*((self.command,) if self.command else ()), *runs)

    @property
    def state(self) -> str:
        """What has been measured for this project, or that nothing has."""
        if self.measured:
            return self.measured
        return "never run" if self.needs else ""


@cache
def list_items() -> tuple[PaperItem, ...]:
    """All tables and figures, in the paper's order."""
    lines = tomllib.loads(files("stablenet.bench").joinpath("paper_list.toml").read_text(encoding="utf-8"))["item"]
    return tuple(read_fields(PaperItem, line, "item") for line in lines)


def count_cells(item: PaperItem, results: Mapping[str, BenchResult]) -> str:
    """How many cells of the item's tables have results: "unbalanced-5 12 of 60"; tables without any are left out.

    results: filled tables by name.
    """
    counts = []
    for name in (*item.tables, *item.near):
        result = results[name]
        wanted = {row.id for row in result.table.rows if not row.extra}
        cells = [cell for (row, _), cell in result.cells.items() if row in wanted and cell.state != "by-design"]
        measured = sum(cell.state == "measured" for cell in cells)
        counts += [f"{name} {measured} of {len(cells)}"] if measured else []
    return ", ".join(counts)
