"""Hyper-parameter search: as many trials for every method, judged on source validation alone.

Every row is searched in every group of columns (a data set); a trial is trained in all columns of the group and scored
by the mean of its runs' best source validation. The target is never read: search runs are not evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from stablenet.bench.cells import CellRun, check_methods, choose_rows, make_run
from stablenet.bench.executors import Executor, Tell
from stablenet.bench.plan import Choice, PlannedRun, choose_columns, lay_out, make_orders
from stablenet.bench.record import record_search
from stablenet.bench.scan import NOT_EVALUATED
from stablenet.bench.spaces import draw_trial, find_space
from stablenet.bench.tables import Column, Row, Table
from stablenet.engine.folder import FINISHED
from stablenet.engine.records import find_best, validation_rank
from stablenet.engine.runs import load_run
from stablenet.errors import UserError


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """budget: trials per method and group, the recipe as it stands among them.   seeds: of every trial's runs.
    draw: another number draws other trials.   space: an own file in the form of `spaces.toml`.
    """

    budget: int = 8
    seeds: tuple[int, ...] = (0,)
    draw: int = 0
    space: Path | None = None

    def __post_init__(self) -> None:
        if self.budget < 2:
            raise UserError(f"--budget must be at least 2, the recipe itself and one more; got {self.budget}")


@dataclass(frozen=True)
class Trial:
    """values: config values beside the recipe's.   score: mean source validation in percent, None if a run failed."""

    values: Mapping[str, Any]
    runs: tuple[CellRun, ...]
    folders: tuple[str, ...] = ()
    score: float | None = None


@dataclass(frozen=True)
class Found:
    """What a search found for a row in a group of columns; the earliest of equally good trials is chosen."""

    row: Row
    group: str
    columns: tuple[str, ...]
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial | None:
        scored = [trial for trial in self.trials if trial.score is not None]
        return max(scored, key=lambda trial: trial.score or 0.0) if scored else None


def draw_searches(table: Table, choice: Choice, settings: SearchSettings, root: Path | None = None) -> list[Found]:
    """All trials of all rows and groups, not yet scored."""
    columns = choose_columns(table, choice.columns)
    searches = []
    for row in choose_rows(table, choice.methods):
        for group in dict.fromkeys(column.group for column in columns):
            members = [column for column in columns if column.group == group]
            trials = tuple(_draw_trials(table, row, group, members, settings, root))
            searches.append(Found(row, group, tuple(column.id for column in members), trials))
    check_methods(run for found in searches for trial in found.trials for run in trial.runs)
    return searches


def plan_searches(searches: Sequence[Found], runs: Path, device: str = "") -> list[PlannedRun]:
    """Every run of the searches once; a finished one is left alone, evaluated or not."""
    wanted: dict[str, tuple[CellRun, list[tuple[str, str]]]] = {}
    for found in searches:
        for trial in found.trials:
            for run in trial.runs:
                wanted.setdefault(run.hash, (run, []))[1].append((found.row.id, found.group))
    planned = lay_out(wanted.values(), runs, device)
    return [replace(each, state=FINISHED) if each.state == NOT_EVALUATED else each for each in planned]


def search(
    table: Table,
    runs: Path,
    choice: Choice,
    settings: SearchSettings,
    executor: Executor,
    tell: Tell,
    root: Path | None = None,
    threads: int = 1,
) -> list[Found]:
    """Train what is missing, score all trials, and write the chosen values into the table's record."""
    searches = draw_searches(table, choice, settings, root)
    planned = plan_searches(searches, runs)
    left = [each for each in planned if each.left]
    executor.run(make_orders(left, table, runs, rules=(), root=root, threads=threads), tell)
    folders = {each.run.hash: each.folder for each in planned}
    scored = [replace(found, trials=tuple(_score(trial, folders) for trial in found.trials)) for found in searches]
    for found in scored:
        if found.best is not None:
            record_search(runs, table, found.row.id, found.group, _describe(found, settings))
    failed = [f"{found.row.id} in {found.group or table.name}" for found in scored if found.best is None]
    if failed:
        raise UserError(f"every trial of {', '.join(failed)} failed: look at their runs; all others are in the record")
    return scored


def _draw_trials(
    table: Table, row: Row, group: str, columns: Sequence[Column], settings: SearchSettings, root: Path | None
) -> list[Trial]:
    space = find_space(row.method, settings.space)
    base = make_run(table, row, columns[0], 0, None, root).config
    trials = []
    for number in range(settings.budget):
        # Columns of one group share their trials, methods do not: each has its own space.
        key = f"{settings.draw}/{row.id}/{group}/{number}"
        values = draw_trial(space, base, key) if number else {}
        runs = [make_run(table, row, column, seed, values, root) for column in columns for seed in settings.seeds]
        trials.append(Trial(values, tuple({run.hash: run for run in runs}.values())))
    return trials


def _score(trial: Trial, folders: Mapping[str, Path]) -> Trial:
    paths = [folders[run.hash] for run in trial.runs]
    scores = [_read_score(path) for path in paths]
    known = [score for score in scores if score is not None]
    score = fmean(known) if len(known) == len(scores) else None
    return replace(trial, score=score, folders=tuple(path.name for path in paths))


def _read_score(path: Path) -> float | None:
    """The best source validation of a finished run, in percent; None for a run that failed."""
    if not (path / "config.json").exists():
        return None
    run = load_run(path)
    if run.status["state"] != FINISHED:
        return None
    best = find_best(run.records)
    if best is None:
        raise UserError(f"the run {path} has no validation part: a search needs one to score its trials")
    return 100 * validation_rank(best)[0]


def _describe(found: Found, settings: SearchSettings) -> dict[str, Any]:
    assert found.best is not None
    return {
        "values": found.best.values,
        "score": found.best.score,
        "scored_by": "mean over runs of the best source validation, as it ranks epochs",
        "budget": settings.budget,
        "seeds": list(settings.seeds),
        "draw": settings.draw,
        "columns": list(found.columns),
        "space": find_space(found.row.method, settings.space),
        "trials": [{"values": t.values, "score": t.score, "runs": list(t.folders)} for t in found.trials],
    }
