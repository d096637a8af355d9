"""From run folders to a filled table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from stablenet.bench.cells import CellRun, add_rows, make_run
from stablenet.bench.compare import compare_seeds, tally
from stablenet.bench.record import find_chosen, read_record
from stablenet.bench.results import BenchResult, Cell, RunRef, SeedValue, State
from stablenet.bench.scan import FoundRun, Scan, scan_runs
from stablenet.bench.tables import Column, Row, Table
from stablenet.errors import UserError
from stablenet.evaluation.selection import DEFAULT_RULE

REFERENCE = "erm"  # the method all others are compared with


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
