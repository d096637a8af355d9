"""What lies in a folder of runs, read from files alone; what is half written or damaged is left out and named."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stablenet.engine.config import RunConfig, read_config
from stablenet.engine.folder import FINISHED, RunFolder
from stablenet.engine.identity import identify, recall_contents
from stablenet.errors import UserError
from stablenet.evaluation.evaluate import ORACLE_RECORDS, RECORDS
from stablenet.evaluation.selection import DEFAULT_RULE, RULES
from stablenet.files import read_json, read_lines

NOT_EVALUATED = "not evaluated"  # trained to its end, but the target has not been looked at


@dataclass(frozen=True)
class Problem:
    """A run folder that is left out, and why."""

    path: Path
    reason: str


@dataclass(frozen=True, kw_only=True)
class FoundRun:
    """figures: of the target under the rule asked for, None before the evaluation.   epoch: of the chosen model.
    done: epochs trained so far.   version, device: of whatever trained last; "" where it is not told.
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
    version: str
    device: str

    @property
    def seed(self) -> int:
        return self.config.seed


@dataclass(frozen=True)
class Scan:
    """Runs by series and seed. Of twins, trained under two names, the one that is further counts."""

    runs: tuple[FoundRun, ...] = ()
    problems: tuple[Problem, ...] = ()
    by_series: Mapping[str, Mapping[int, FoundRun]] = field(default_factory=dict)

    def find(self, series: str) -> Mapping[int, FoundRun]:
        """Runs of one config by seed."""
        return self.by_series.get(series, {})


def scan_runs(folder: Path, rule: str = DEFAULT_RULE) -> Scan:
    """All runs below a folder; a folder that is not there holds none."""
    runs, problems = [], []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not _looks_like_run(path):
            continue
        try:
            runs.append(read_run(path, rule))
        except (UserError, ValueError, KeyError, TypeError, OSError) as error:
            problems.append(Problem(path, _explain(error)))
    return Scan(tuple(runs), tuple(problems), _sort_by_series(runs))


def read_run(path: Path, rule: str = DEFAULT_RULE) -> FoundRun:
    """One run folder; raises where a file of it is missing, damaged or of a version this one cannot read."""
    folder = RunFolder(path)
    if not folder.config.exists():
        raise UserError("it has no config.json: it was stopped before it began")
    described = read_json(folder.config)
    config = read_config(described["config"])
    status = folder.read_status()
    state, evaluation = status["state"], None
    records = read_lines(folder.records)  # damage is named here, before anything draws curves of them
    if state == FINISHED:
        _require_end(records)
        evaluation = find_evaluation(path, rule)
        state = FINISHED if evaluation else NOT_EVALUATED
    session = _read_session(folder)
    return FoundRun(
        path=path,
        config=config,
        hash=described["hash"],
        series=identify(config, recall_contents(config, described["hashed"])).series,
        state=state,
        reason=status["reason"],
        done=status["epoch"],
        epoch=evaluation["epoch"] if evaluation else None,
        figures=evaluation["figures"] if evaluation else None,
        version=session.get("stablenet", ""),
        device=session.get("device", ""),
    )


def find_evaluation(path: Path, rule: str, part: str = "test") -> dict[str, Any] | None:
    """The last evaluation of a run under a rule."""
    file = path / (ORACLE_RECORDS if RULES[rule].looks_at_target else RECORDS)
    lines = [line for line in read_lines(file) if line["rule"] == rule and line["part"] == part]
    return lines[-1] if lines else None


def _looks_like_run(path: Path) -> bool:
    """Something with the files of a run; other folders beside runs are nobody's business."""
    names = ("config.json", "manifest.tsv", "records.jsonl", "status.json")
    return path.is_dir() and not path.name.startswith(".") and any((path / name).exists() for name in names)


def _require_end(records: Sequence[Mapping[str, Any]]) -> None:
    """A finished run's records end with its last record."""
    if not records or records[-1]["kind"] != "end":
        raise UserError("records.jsonl is half written: it lacks the last record of a finished run")


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
    return f"a file is damaged: {error}"
