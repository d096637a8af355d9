"""Fill a table from run folders.

First the scan of a folder of runs, from their files only; incomplete or damaged runs are left out and reported.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from stablenet.bench.cells import CellRun, add_rows, find_chosen, make_run, read_record
from stablenet.bench.paper_tables import PaperTable, Row, TableColumn
from stablenet.bench.results import BenchResult, LeftOut, ResultCell, RunRef, SeedValue, State, compare_seeds, tally
from stablenet.engine.config import RunConfig, read_config
from stablenet.engine.identity import identify, recall_contents, recall_identity, recall_version
from stablenet.engine.ranking import find_best
from stablenet.engine.run import Decided, find_decision
from stablenet.engine.run_folder import FINISHED, RunFolder
from stablenet.errors import UserError, explain_os_error
from stablenet.evaluation.evaluate import DEFAULT_RULE, ORACLE_RECORDS, RECORDS, RULES
from stablenet.files import read_json, read_lines

NOT_EVALUATED = "not evaluated"  # fully trained, but not evaluated on the target


@dataclass(frozen=True, kw_only=True)
class FoundRun:
    """figures: target metrics under the given rule, None before the evaluation.   epoch: of the chosen model.
    validation: source metrics of the epoch that is best by them, None without a held-out part.
    series: of the current config that does what this run did.   preset: version of the method's defaults it was begun
    with, "" if there is only one.   namesake: series of today's run of the same config.   decided: the decision before
    training.
    done: epochs trained so far.   version, device: of the last session; "" if unknown.
    """

    path: Path
    config: RunConfig
    hash: str
    series: str
    state: str
    reason: str
    done: int
    epoch: int | None
    figures: Mapping[str, Any] | None
    validation: Mapping[str, Any] | None
    version: str
    device: str
    preset: str = ""
    namesake: str = ""
    decided: Decided | None = None

    @property
    def seed(self) -> int:
        return self.config.seed


@dataclass(frozen=True)
class Scan:
    """Runs by series and seed. Of duplicates, trained under two names, the more advanced one is used."""

    runs: tuple[FoundRun, ...] = ()
    problems: tuple[LeftOut, ...] = ()
    by_series: Mapping[str, Mapping[int, FoundRun]] = field(default_factory=dict)

    def find(self, series: str) -> Mapping[int, FoundRun]:
        """Runs of one config by seed."""
        return self.by_series.get(series, {})

    def find_earlier(self, series: str) -> list[FoundRun]:
        """Runs of the same config under an earlier version of its method's defaults, which do something else."""
        return [run for run in self.runs if run.namesake == series != run.series]


def scan_runs(folder: Path, rule: str = DEFAULT_RULE) -> Scan:
    """Scan all runs below a folder; a missing folder has none."""
    runs, problems = [], []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            if _looks_like_run(path):
                runs.append(read_run(path, rule))
        except (UserError, ValueError, KeyError, TypeError, OSError) as error:
            problems.append(LeftOut(path, _explain(error)))
    return Scan(tuple(runs), tuple(problems), _sort_by_series(runs))


def read_run(path: Path, rule: str = DEFAULT_RULE) -> FoundRun:
    """Read one run folder; raises if a file is missing, damaged or of an incompatible version."""
    folder = RunFolder(path)
    if not folder.config.exists():
        raise UserError("it has no config.json: it was stopped before training started")
    described = read_json(folder.config)
    config = read_config(described["config"])
    status = folder.read_status()
    state, evaluation = status["state"], None
    records = read_lines(folder.records)  # damage is reported here, before curves are drawn
    if state == FINISHED:
        _require_end(records)
        evaluation = find_evaluation(path, rule)
        state = FINISHED if evaluation else NOT_EVALUATED
    session = _read_session(folder)
    return FoundRun(
        path=path,
        config=config,
        hash=described["hash"],
        series=recall_identity(config, described["hashed"]).series,
        state=state,
        reason=status["reason"],
        done=status["epoch"],
        epoch=evaluation["epoch"] if evaluation else None,
        figures=evaluation["figures"] if evaluation else None,
        validation=(find_best(records) or {}).get("validation"),
        version=session.get("stablenet", ""),
        device=session.get("device", ""),
        preset=recall_version(config, described["hashed"]),
        decided=find_decision(records),
        namesake=identify(config, recall_contents(config, described["hashed"])).series,
    )


def find_evaluation(path: Path, rule: str, part: str = "test") -> dict[str, Any] | None:
    """The latest evaluation of a run under a rule."""
    file = path / (ORACLE_RECORDS if RULES[rule].looks_at_target else RECORDS)
    lines = [line for line in read_lines(file) if line["rule"] == rule and line["part"] == part]
    return lines[-1] if lines else None


def choose_again(run: FoundRun, rule: str) -> FoundRun:
    """The run under a rule of its own; as it is for ""."""
    if not rule or run.state not in (FINISHED, NOT_EVALUATED):
        return run
    evaluation = find_evaluation(run.path, rule)
    if evaluation is None:
        return replace(run, state=NOT_EVALUATED, epoch=None, figures=None)
    return replace(run, state=FINISHED, epoch=evaluation["epoch"], figures=evaluation["figures"])


def _looks_like_run(path: Path) -> bool:
    """Whether a folder has files of a run; other folders are ignored."""
    names = ("config.json", "manifest.tsv", "records.jsonl", "status.json")
    return path.is_dir() and not path.name.startswith(".") and any((path / name).exists() for name in names)


def _require_end(records: Sequence[Mapping[str, Any]]) -> None:
    """Check that the records of a finished run are complete."""
    if not records or records[-1]["kind"] != "end":
        raise UserError("records.jsonl is incomplete: it lacks the last record of a finished run")


def _read_session(folder: RunFolder) -> dict[str, Any]:
    sessions = [line for line in read_lines(folder.timing) if line["kind"] == "session"]
    return sessions[-1] if sessions else {}


def _sort_by_series(runs: Sequence[FoundRun]) -> dict[str, dict[int, FoundRun]]:
    found: dict[str, dict[int, FoundRun]] = defaultdict(dict)
    for run in runs:
        twin = found[run.series].get(run.seed)
        if twin is None or _rank(run) > _rank(twin):
            found[run.series][run.seed] = run
    return dict(found)


def _rank(run: FoundRun) -> tuple[bool, bool, int]:
    return run.figures is not None, run.state == NOT_EVALUATED, run.done


def _explain(error: Exception) -> str:
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, KeyError):
        return f"a record lacks the field {error}"
    if isinstance(error, FileNotFoundError):
        return f"{Path(str(error.filename)).name} is missing"
    if isinstance(error, OSError):
        return str(explain_os_error(error))
    return f"a file is damaged: {error}"


REFERENCE = "erm"  # the method with which all others are compared


def collect(
    table: PaperTable,
    runs: Path,
    *,
    rule: str = DEFAULT_RULE,
    tuned: bool = False,
    seeds: Sequence[int] | None = None,
    root: Path | None = None,
    scan: Scan | None = None,
) -> BenchResult:
    """Fill a table from the runs below a folder.

    tuned: use runs with the values chosen by a search instead of the recipes'.   seeds: only these.
    scan: of the folder under the same rule, if already available.
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
    """Fills the cells of one table from one scan."""

    def __init__(
        self,
        table: PaperTable,
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

    def fill_row(self, row: Row) -> Iterable[tuple[TableColumn, ResultCell]]:
        """The cells of a row; those with runs are filled first, then their averages."""
        cells = {column.id: self._fill(row, column) for column in self.table.columns if not column.mean_of}
        for column in self.table.columns:
            yield column, self._average(row, column, cells) if column.mean_of else cells[column.id]

    def _fill(self, row: Row, column: TableColumn) -> ResultCell:
        if column.empty:
            return self._make(row, column, (), (), "by-design", column.empty)
        chosen = find_chosen(self.record, row.id, column.group) if self._tuned else {}
        if chosen is None:
            return self._make(row, column, (), (), "missing", "no search has chosen its values")
        try:
            wanted = make_run(self.table, row, column, 0, chosen, self._root)
        except UserError as error:
            return self._make(row, column, (), (), "missing", str(error))
        found = {seed: choose_again(run, row.rule) for seed, run in self.scan.find(wanted.series).items()}
        values, unfinished = [], []
        for seed in sorted(found):
            if self._seeds is None or seed in self._seeds:
                ref, value = _refer(found[seed], wanted), _read_value(found[seed], column)
                values += [SeedValue(seed, value, (ref,))] if value is not None else []
                unfinished += [ref] if found[seed].figures is None else []
        reason = "" if values else _explain_missing(column, found, len(unfinished))
        earlier = self.scan.find_earlier(wanted.series)
        if earlier and not found:
            reason = f"{len(earlier)} runs of version {earlier[0].preset} of its preset, which does something else"
        return self._make(row, column, values, unfinished, "measured" if values else "missing", reason)

    def _average(self, row: Row, column: TableColumn, cells: Mapping[str, ResultCell]) -> ResultCell:
        """The mean over columns for every seed common to all of them."""
        parts = [cells[name] for name in column.mean_of]
        seeds = sorted(set.intersection(*(set(part.by_seed) for part in parts)))
        values = []
        for seed in seeds:
            taken = [next(value for value in part.values if value.seed == seed) for part in parts]
            runs = tuple(ref for value in taken for ref in value.runs)
            values.append(SeedValue(seed, fmean(value.value for value in taken), runs))
        lacking = [self.table.find_column(part.column).title for part in parts if not part.values]
        reason = f"no results in {', '.join(lacking)}" if lacking else "no seed has results in all its columns"
        return self._make(row, column, values, (), "measured" if values else "missing", "" if values else reason)

    def _make(
        self,
        row: Row,
        column: TableColumn,
        values: Sequence[SeedValue],
        unfinished: Sequence[RunRef],
        state: State,
        reason: str,
    ) -> ResultCell:
        return ResultCell(
            row=row.id,
            column=column.id,
            state=state,
            reason=reason,
            values=tuple(values),
            unfinished=tuple(unfinished),
            paper=self.table.number(row.id, column.id),
        )


def _compare(cells: Mapping[tuple[str, str], ResultCell], reference: str | None) -> dict[tuple[str, str], ResultCell]:
    """Add comparisons with the reference row to the cells of the other rows."""
    if reference is None:
        return dict(cells)
    compared = {}
    for (row, column), cell in cells.items():
        versus = None if row == reference else compare_seeds(cell.by_seed, cells[reference, column].by_seed)
        compared[row, column] = replace(cell, versus=versus)
    return compared


def _read_value(run: FoundRun, column: TableColumn) -> float | None:
    if run.figures is None:
        return None
    if column.metric != "accuracy":
        return _read_groups(run.figures, column)
    if not column.domain:
        return 100 * float(run.figures["accuracy"])
    share = run.figures.get("per_domain", {}).get(column.domain)
    return None if share is None else 100 * float(share)


def _read_groups(figures: Mapping[str, Any], column: TableColumn) -> float | None:
    """None for an evaluation by a version that did not record the groups."""
    groups = figures.get("groups")
    if groups is None:
        return None
    named = {"worst-group": groups["worst"]["accuracy"], "mean-group": groups["mean"], "group-gap": groups["gap"]}
    return 100 * float(named[column.metric])


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
        preset=run.preset,
        decided=run.decided,
    )


def _explain_missing(column: TableColumn, found: Mapping[int, FoundRun], unfinished: int) -> str:
    if not found:
        return "no runs"
    if unfinished == len(found):
        return f"{unfinished} unfinished"
    if column.metric != "accuracy":
        return "these runs were evaluated without groups: evaluate them again with `stablenet evaluate`"
    return f"no target images of the domain {column.domain!r} in these runs"
