"""Which runs a table needs, which of them exist, and how long the others will take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stablenet.bench.cells import CellRun, check_methods, choose_rows, find_chosen, make_run, read_record
from stablenet.bench.collect import NOT_EVALUATED, FoundRun, find_evaluation, scan_runs
from stablenet.bench.paper_tables import PaperTable, Row, TableColumn
from stablenet.bench.worker import Estimate, RunOrder, estimate, guess_gigabytes, read_speeds, speeds_path
from stablenet.engine.config import RunConfig
from stablenet.engine.run_folder import FINISHED, RunFolder
from stablenet.errors import UserError
from stablenet.evaluation.evaluate import AVERAGED, DEFAULT_RULE
from stablenet.registry import unknown_name

TO_DO, DAMAGED = "to do", "damaged"
RULES = (DEFAULT_RULE, "last")  # with which every finished run is evaluated


@dataclass(frozen=True, kw_only=True)
class TablePart:
    """A part of a table. methods: row ids or methods, () for all that are not extra.   columns: ids, () for all.
    tuned: with the values chosen by a search.
    """

    methods: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    tuned: bool = False


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run used by some cells (row, column). state: to do, damaged (with the reason), or as in `FoundRun`.
    done: share trained so far.   gigabytes: estimated GPU memory.
    """

    run: CellRun
    folder: Path
    cells: tuple[tuple[str, str], ...]
    state: str
    reason: str
    done: float
    estimate: Estimate | None
    gigabytes: float

    @property
    def left(self) -> bool:
        """Whether it still has to be trained or evaluated."""
        return self.state not in (FINISHED, DAMAGED)

    @property
    def seconds(self) -> float | None:
        """Remaining time; None if no similar run has been measured."""
        if not self.left:
            return 0.0
        return None if self.estimate is None else self.estimate.seconds * (1 - self.done)


@dataclass(frozen=True)
class Plan:
    """The runs of a part of a table, ordered by seed, each once."""

    table: PaperTable
    runs: tuple[PlannedRun, ...]

    @property
    def left(self) -> tuple[PlannedRun, ...]:
        return tuple(run for run in self.runs if run.left)

    @property
    def damaged(self) -> tuple[PlannedRun, ...]:
        return tuple(run for run in self.runs if run.state == DAMAGED)

    @property
    def unmeasured(self) -> tuple[PlannedRun, ...]:
        """Remaining runs without an estimated time."""
        return tuple(run for run in self.left if run.seconds is None)

    @property
    def seconds(self) -> float:
        """Total time of the remaining runs with an estimate, one after another."""
        return sum(run.seconds or 0.0 for run in self.left)


def make_plan(table: PaperTable, runs: Path, choice: TablePart, device: str = "", root: Path | None = None) -> Plan:
    """Plan a part of a table. device: as named in `timing.jsonl`; times measured on it are preferred."""
    rows, columns = choose_rows(table, choice.methods), choose_columns(table, choice.columns)
    wanted: dict[str, tuple[CellRun, list[tuple[str, str]]]] = {}
    for seed in choice.seeds:
        for row in rows:
            for column in columns:
                run = make_run(table, row, column, seed, _find_values(table, runs, row, column, choice.tuned), root)
                wanted.setdefault(run.hash, (run, []))[1].append((row.id, column.id))
    check_methods(run for run, _ in wanted.values())
    return Plan(table, tuple(lay_out(wanted.values(), runs, device)))


def lay_out(
    wanted: Iterable[tuple[CellRun, Sequence[tuple[str, str]]]], runs: Path, device: str
) -> Iterable[PlannedRun]:
    """Match runs with their existing or future folders."""
    scan, speeds = scan_runs(runs), read_speeds(speeds_path(runs))
    broken = {problem.path: problem.reason for problem in scan.problems}
    for run, cells in wanted:
        found = scan.find(run.series).get(run.config.seed)
        if found is not None and found.hash != run.hash and found.state != FINISHED:
            found = None  # started by a version with another hash: the engine would not resume it
        folder = found.path if found else runs / run.config.name_folder(run.hash)
        state, reason = _judge(found, folder, broken)
        yield PlannedRun(
            run=run,
            folder=folder,
            cells=tuple(cells),
            state=state,
            reason=reason,
            done=found.done / run.config.train.epochs if found else 0.0,
            estimate=estimate(speeds, run, device),
            gigabytes=guess_gigabytes(speeds, run, device),
        )


def choose_columns(table: PaperTable, names: Sequence[str]) -> tuple[TableColumn, ...]:
    """The columns with runs: those given, and those averaged by a given one."""
    asked = find_columns(table, names)
    kept = {part for column in asked for part in (column.mean_of or (column.id,))}
    return tuple(column for column in table.columns if column.id in kept and not column.mean_of and not column.empty)


def find_columns(table: PaperTable, names: Sequence[str]) -> list[TableColumn]:
    """The given columns, including averages, or all by default, in the table's order."""
    known = [column.id for column in table.columns]
    for name in names:
        if name not in known:
            raise UserError(unknown_name("column", name, known))
    return [column for column in table.columns if not names or column.id in names]


def make_orders(
    planned: Iterable[PlannedRun],
    table: PaperTable,
    runs: Path,
    *,
    rules: tuple[str, ...] = RULES,
    root: Path | None = None,
    device: str = "auto",
    threads: int = 1,
    figures_only: bool = False,
) -> list[RunOrder]:
    """Orders for the workers; paths are absolute, because workers may have another working directory."""
    return [
        RunOrder(
            name=each.folder.name,
            config=each.run.config.plain(),
            series=each.run.series,
            folder=str(each.folder.absolute()),
            rules=_add_averaged(rules, each.run.config),
            speeds=str(speeds_path(runs).absolute()),
            root=str(root.absolute()) if root else None,
            device=device,
            threads=threads,
            gigabytes=each.gigabytes,
            imports=table.imports,
            folders=tuple(map(str, table.folders)),
            figures_only=figures_only,
        )
        for each in planned
    ]


def _find_values(table: PaperTable, runs: Path, row: Row, column: TableColumn, tuned: bool) -> Mapping[str, object]:
    if not tuned:
        return {}
    values = find_chosen(read_record(runs, table), row.id, column.group)
    if values is None:
        where = f"{row.id} in {column.group or table.name}"
        name = table.path or table.name
        raise UserError(f"no search has chosen values for {where}: run `stablenet bench search {name}` first")
    return values


def _judge(found: FoundRun | None, folder: Path, broken: Mapping[Path, str]) -> tuple[str, str]:
    if found is not None:
        return NOT_EVALUATED if _lacks_evaluations(found) else found.state, found.reason
    if folder in broken and (folder / "config.json").exists():
        return DAMAGED, broken[folder]
    return TO_DO, ""


def _lacks_evaluations(found: FoundRun) -> bool:
    """Whether its worker was killed between two evaluations. Published runs, without networks, stay as they are."""
    if found.state != FINISHED or not RunFolder(found.path).model("last").exists():
        return False
    return any(find_evaluation(found.path, rule) is None for rule in _add_averaged(RULES, found.config))


def _add_averaged(rules: tuple[str, ...], config: RunConfig) -> tuple[str, ...]:
    """The rules with which a run is evaluated, with that of averaged weights where there are some."""
    return (*rules, AVERAGED) if rules and config.train.averaging != "none" else rules
