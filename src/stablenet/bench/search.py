"""Hyper-parameter search: the same number of trials for every method, scored on source validation only.

Every row is searched in every group of columns (a data set); a trial is trained in all columns of the group, and its
score is the mean of its runs' best source validation. The target is never read: search runs are not evaluated.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from stablenet.algorithms import read_settings
from stablenet.bench.cells import CellRun, check_methods, choose_rows, make_run, record_search
from stablenet.bench.collect import NOT_EVALUATED
from stablenet.bench.executors import Executor, Tell
from stablenet.bench.paper_tables import PaperTable, Row, TableColumn
from stablenet.bench.plan import PlannedRun, TablePart, choose_columns, lay_out, make_orders
from stablenet.engine.config import RunConfig, merge, read_toml
from stablenet.engine.ranking import find_best, validation_rank
from stablenet.engine.run import load_run
from stablenet.engine.run_folder import FINISHED
from stablenet.errors import UserError

Range = Mapping[str, list[Any]]  # one of times, log, linear, choices -> its numbers
_KINDS = ("times", "log", "linear", "choices")
SCORED_BY = "mean over runs of the best source validation, as it ranks epochs; with SWAD of the averaged model"
_DIGITS = 3  # of a drawn number: chosen values should be easy to read and type


def find_space(config: RunConfig, file: Path | None = None) -> dict[str, Range]:
    """The settings to search for the config's method, and their ranges.

    file: the user's, in the format of `spaces.toml`.
    """
    spaces, method = read_toml(file) if file is not None else _load(), config.method.name
    chosen = ["common", method]
    preset = getattr(read_settings(method, config.method.parameters), "preset", None)
    if preset is not None:
        chosen.append(f"{method}/{preset}")
    if config.train.averaging != "none":
        chosen.append(config.train.averaging)
    space = {name: found for table in chosen for name, found in spaces.get(table, {}).items()}
    for name, found in space.items():
        _check(name, found)
    if not space:
        raise UserError(f"the search space has nothing for {method}: add a table [common] or [{method}]")
    return space


def draw_trial(space: Mapping[str, Range], config: RunConfig, key: str) -> dict[str, Any]:
    """Draw nested config values, the same for the same key.   config: of the unchanged recipe."""
    generator, values = Random(key), dict[str, Any]()
    for name, found in sorted(space.items()):
        ((kind, numbers),) = found.items()
        drawn: Any = _draw(generator, kind, numbers, name, config)
        for part in reversed(name.split(".")):
            drawn = {part: drawn}
        values = merge(values, drawn)
    return values


def _draw(generator: Random, kind: str, numbers: list[Any], name: str, config: RunConfig) -> Any:
    if kind == "choices":
        return generator.choice(numbers)
    low, high = numbers
    if kind == "linear":
        return _shorten(generator.uniform(low, high))
    drawn = math.exp(generator.uniform(math.log(low), math.log(high)))
    return _shorten(drawn * _read(config, name) if kind == "times" else drawn)


def _shorten(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _read(config: RunConfig, name: str) -> float:
    """A setting's value in the config."""
    found: Any = config.plain()
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    if not isinstance(found, int | float):
        raise UserError(f"the search space multiplies {name}, which is not a number in the config: use a log range")
    return float(found)


def _check(name: str, found: Any) -> None:
    known = isinstance(found, Mapping) and len(found) == 1 and next(iter(found)) in _KINDS
    numbers = next(iter(found.values())) if known else None
    if not isinstance(numbers, list) or not numbers:
        raise UserError(f"the search space of {name} must be one of {', '.join(_KINDS)} with a list, got {found!r}")
    kind = next(iter(found))
    if kind == "choices":
        return
    ordered = len(numbers) == 2 and numbers[0] < numbers[1] and (kind == "linear" or numbers[0] > 0)
    if not ordered:
        raise UserError(
            f"the range {kind} of {name} must be two increasing numbers (positive unless linear), got {numbers}"
        )


@cache
def _load() -> dict[str, Any]:
    return tomllib.loads(files("stablenet.bench").joinpath("spaces.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """budget: trials per method and group, including the unchanged recipe.   seeds: of every trial's runs.
    draw: seed for drawing the trials.   space: the user's file, in the format of `spaces.toml`.
    """

    budget: int = 8
    seeds: tuple[int, ...] = (0,)
    draw: int = 0
    space: Path | None = None

    def __post_init__(self) -> None:
        if self.budget < 2:
            raise UserError(f"--budget must be at least 2, for the unchanged recipe and one trial, got {self.budget}")


@dataclass(frozen=True)
class Trial:
    """values: overrides of the recipe.   score: mean source validation in percent, None if a run failed."""

    values: Mapping[str, Any]
    runs: tuple[CellRun, ...]
    folders: tuple[str, ...] = ()
    score: float | None = None


@dataclass(frozen=True)
class Found:
    """The result of a search for a row in a group of columns; among equal scores the earliest trial is chosen."""

    row: Row
    group: str
    columns: tuple[str, ...]
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial | None:
        scored = [trial for trial in self.trials if trial.score is not None]
        return max(scored, key=lambda trial: trial.score or 0.0) if scored else None


def draw_searches(
    table: PaperTable, choice: TablePart, settings: SearchSettings, root: Path | None = None
) -> list[Found]:
    """Draw all trials of all rows and groups, not yet scored."""
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
    """Every run of the searches once; finished ones are not evaluated."""
    wanted: dict[str, tuple[CellRun, list[tuple[str, str]]]] = {}
    for found in searches:
        for trial in found.trials:
            for run in trial.runs:
                wanted.setdefault(run.hash, (run, []))[1].append((found.row.id, found.group))
    planned = lay_out(wanted.values(), runs, device)
    return [replace(each, state=FINISHED) if each.state == NOT_EVALUATED else each for each in planned]


def search(
    table: PaperTable,
    runs: Path,
    choice: TablePart,
    settings: SearchSettings,
    executor: Executor,
    tell: Tell,
    root: Path | None = None,
    threads: int = 1,
) -> list[Found]:
    """Train missing runs, score all trials, and save the chosen values in the table's record."""
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
        raise UserError(f"every trial of {', '.join(failed)} failed: check their runs; all other results are saved")
    return scored


def _draw_trials(
    table: PaperTable, row: Row, group: str, columns: Sequence[TableColumn], settings: SearchSettings, root: Path | None
) -> list[Trial]:
    base = make_run(table, row, columns[0], 0, None, root).config
    space = find_space(base, settings.space)
    trials = []
    for number in range(settings.budget):
        # The columns of a group share their trials; methods do not, because each has its own space.
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
    """The best source validation of a finished run, in percent, or that of its averaged model; None if it failed."""
    if not (path / "config.json").exists():
        return None
    run = load_run(path)
    if run.status["state"] != FINISHED:
        return None
    averaged = [record for record in run.records if record["kind"] == "averaged"]
    if averaged:  # the averaged model is what such a run is made for
        return 100 * float(averaged[-1]["validation"]["accuracy"])
    best = find_best(run.records)
    if best is None:
        raise UserError(f"the run {path} has no validation part: a search needs one to score its trials")
    return 100 * validation_rank(best)[0]


def _describe(found: Found, settings: SearchSettings) -> dict[str, Any]:
    assert found.best is not None
    return {
        "values": found.best.values,
        "score": found.best.score,
        "scored_by": SCORED_BY,
        "budget": settings.budget,
        "seeds": list(settings.seeds),
        "draw": settings.draw,
        "columns": list(found.columns),
        "space": find_space(found.trials[0].runs[0].config, settings.space),
        "trials": [{"values": t.values, "score": t.score, "runs": list(t.folders)} for t in found.trials],
    }
