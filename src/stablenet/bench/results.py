"""A table filled from run folders: every number with the runs behind it. A missing cell is missing, never zero."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from stablenet.bench.cells import CellRun, add_rows, make_run
from stablenet.bench.compare import Tally, Versus, compare_seeds, tally
from stablenet.bench.record import find_chosen, read_record
from stablenet.bench.scan import FoundRun, Problem, Scan, scan_runs
from stablenet.bench.tables import Column, PaperNumber, Row, Table
from stablenet.errors import UserError
from stablenet.evaluation.selection import DEFAULT_RULE, RULES

State = Literal["measured", "missing", "by-design"]
REFERENCE = "erm"  # the method all others are compared with


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


def collect(
    table: Table,
    runs: Path,
    *,
    rule: str = DEFAULT_RULE,
    tuned: bool = False,
    seeds: Sequence[int] | None = None,
    root: Path | None = None,
    scan: Scan | None = None,
) -> BenchResult:
    """Fill a table from the runs below a folder.

    tuned: the runs with the values a search chose, in place of the recipes' own.   seeds: only these.
    scan: of the folder under the same rule, where it has been read already.
    """
    filler = _Filler(table, scan or scan_runs(runs, rule), read_record(runs, table), tuned, seeds, root)
    rows = [*table.rows, *(row for row in add_rows(table) if filler.has_runs(row))]
    cells = {(row.id, column.id): cell for row in rows for column, cell in filler.fill_row(row)}
    reference = next((row.id for row in rows if row.method == REFERENCE), None)
    cells = _compare(cells, reference)
    columns = [column.id for column in table.columns if not column.mean_of and not column.empty]
    used = {ref.path: ref for cell in cells.values() for value in cell.values for ref in value.runs}.values()
    return BenchResult(
        table=table,
        rows=tuple(rows),
        columns=table.columns,
        rule=rule,
        tuned=tuned,
        cells=cells,
        tallies={
            row.id: tally(cells[row.id, column].versus for column in columns) for row in rows if row.id != reference
        },
        reference=reference,
        problems=filler.scan.problems,
        versions=dict(Counter(ref.version or "unknown" for ref in used)),
        devices=dict(Counter(ref.device or "unknown" for ref in used)),
        chosen=filler.record.get("search", {}),
    )


class _Filler:
    """Cells of one table from one scan."""

    def __init__(
        self,
        table: Table,
        scan: Scan,
        record: Mapping[str, Any],
        tuned: bool,
        seeds: Sequence[int] | None,
        root: Path | None,
    ) -> None:
        self.table, self.scan, self.record = table, scan, record
        self._tuned, self._root = tuned, root
        self._seeds = None if seeds is None else set(seeds)

    def has_runs(self, row: Row) -> bool:
        return any(cell.values or cell.unfinished for _, cell in self.fill_row(row))

    def fill_row(self, row: Row) -> Iterable[tuple[Column, Cell]]:
        """Columns that hold runs first, then the averages of them."""
        cells = {column.id: self._fill(row, column) for column in self.table.columns if not column.mean_of}
        for column in self.table.columns:
            yield column, self._average(row, column, cells) if column.mean_of else cells[column.id]

    def _fill(self, row: Row, column: Column) -> Cell:
        if column.empty:
            return self._make(row, column, (), (), "by-design", column.empty)
        chosen = find_chosen(self.record, row.id, column.group) if self._tuned else {}
        if chosen is None:
            return self._make(row, column, (), (), "missing", "no search has chosen its values")
        try:
            wanted = make_run(self.table, row, column, 0, chosen, self._root)
        except UserError as error:
            return self._make(row, column, (), (), "missing", str(error))
        found = self.scan.find(wanted.series)
        values, unfinished = [], []
        for seed in sorted(found):
            if self._seeds is None or seed in self._seeds:
                ref, value = _refer(found[seed], wanted), _read_value(found[seed], column)
                values += [SeedValue(seed, value, (ref,))] if value is not None else []
                unfinished += [ref] if found[seed].figures is None else []
        reason = "" if values else _explain_missing(column, found, len(unfinished))
        return self._make(row, column, values, unfinished, "measured" if values else "missing", reason)

    def _average(self, row: Row, column: Column, cells: Mapping[str, Cell]) -> Cell:
        """The mean over columns for every seed that all of them have."""
        parts = [cells[name] for name in column.mean_of]
        seeds = sorted(set.intersection(*(set(part.by_seed) for part in parts)))
        values = []
        for seed in seeds:
            taken = [next(value for value in part.values if value.seed == seed) for part in parts]
            runs = tuple(ref for value in taken for ref in value.runs)
            values.append(SeedValue(seed, fmean(value.value for value in taken), runs))
        lacking = [self.table.find_column(part.column).title for part in parts if not part.values]
        reason = f"nothing measured in {', '.join(lacking)}" if lacking else "no seed is measured in all its columns"
        return self._make(row, column, values, (), "measured" if values else "missing", "" if values else reason)

    def _make(
        self,
        row: Row,
        column: Column,
        values: Sequence[SeedValue],
        unfinished: Sequence[RunRef],
        state: State,
        reason: str,
    ) -> Cell:
        return Cell(
            row=row.id,
            column=column.id,
            state=state,
            reason=reason,
            values=tuple(values),
            unfinished=tuple(unfinished),
            paper=self.table.number(row.id, column.id),
        )


def _compare(cells: Mapping[tuple[str, str], Cell], reference: str | None) -> dict[tuple[str, str], Cell]:
    """The cells, those of other rows compared with the reference's."""
    if reference is None:
        return dict(cells)
    compared = {}
    for (row, column), cell in cells.items():
        versus = None if row == reference else compare_seeds(cell.by_seed, cells[reference, column].by_seed)
        compared[row, column] = replace(cell, versus=versus)
    return compared


def _read_value(run: FoundRun, column: Column) -> float | None:
    if run.figures is None:
        return None
    if not column.domain:
        return 100 * float(run.figures["accuracy"])
    share = run.figures.get("per_domain", {}).get(column.domain)
    return None if share is None else 100 * float(share)


def _refer(run: FoundRun, wanted: CellRun) -> RunRef:
    settings = tuple(f"seed={run.seed}" if text.startswith("seed=") else text for text in wanted.settings)
    same = CellRun(config=run.config, hash=run.hash, series=run.series, recipe=wanted.recipe, settings=settings)
    return RunRef(
        path=run.path,
        seed=run.seed,
        state=run.state,
        reason=run.reason,
        hash=run.hash,
        recipe=wanted.recipe,
        epoch=run.epoch,
        config=run.config.plain(),
        command=same.command,
        version=run.version,
        device=run.device,
    )


def _explain_missing(column: Column, found: Mapping[int, FoundRun], unfinished: int) -> str:
    if not found:
        return "no runs"
    if unfinished == len(found):
        return f"{unfinished} unfinished"
    return f"no target images of the domain {column.domain!r} in these runs"
