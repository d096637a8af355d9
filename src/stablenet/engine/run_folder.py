"""The files of a run folder, and what a list of many runs shows of them; imports neither torch nor pandas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from stablenet.engine.config import hash_values
from stablenet.engine.ranking import PENALTY, find_best
from stablenet.errors import UserError
from stablenet.files import is_locked, name_refusals, read_lines, read_object, remove_lock, write_json
from stablenet.values import SettingError, Whole, read_fields

RUNNING, INTERRUPTED, FAILED, FINISHED = "running", "interrupted", "failed", "finished"
KILLED = "killed"  # the state of a run recorded as `running` while no process holds its lock


@dataclass(frozen=True, kw_only=True)
class Status:
    """The contents of `status.json`.   reason: of a failure.   epoch, step: done."""

    state: Literal["running", "interrupted", "failed", "finished"]
    reason: str
    epoch: Whole
    step: Whole


@dataclass(frozen=True)
class RunFolder:
    """Paths of the files in a run folder."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.tsv"

    @property
    def records(self) -> Path:
        return self.path / "records.jsonl"

    @property
    def oracle(self) -> Path:
        return self.path / "oracle.jsonl"

    @property
    def timing(self) -> Path:
        return self.path / "timing.jsonl"

    @property
    def weights(self) -> Path:
        return self.path / "weights.parquet"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    @property
    def lock(self) -> Path:
        return self.path / ".lock"

    def model(self, which: str | int) -> Path:
        """which: "best", "last", "worst-group", "worst-pseudo-group", "averaged", or an epoch (from 1)."""
        return self.path / (f"{which}.safetensors" if isinstance(which, str) else f"epoch-{which:04d}.safetensors")

    def set_status(self, state: str, epoch: int, step: int, reason: str = "") -> None:
        # Rewritten with every checkpoint, so there is no need to sync.
        values = {"state": state, "reason": reason, "epoch": epoch, "step": step}
        write_json(self.status, values, sync=state == FINISHED)

    def read_status(self) -> dict[str, Any]:
        """The status; a run recorded as `running` while no process trains it was killed."""
        if not self.status.exists():
            return {"state": KILLED, "reason": "", "epoch": 0, "step": 0}
        try:
            status = asdict(read_fields(Status, read_object(self.status)))
        except SettingError as error:
            raise UserError(f"{self.status} is damaged: {error}") from error
        if status["state"] == RUNNING and not is_locked(self.lock):
            status["state"] = KILLED
        return status

    def forget(self) -> None:
        """Remove the files of a run that could not start; all other files are kept."""
        for file in (self.config, self.manifest, self.status):
            file.unlink(missing_ok=True)
        remove_lock(self.lock)
        if not any(self.path.iterdir()):
            self.path.rmdir()


def read_description(folder: RunFolder) -> dict[str, Any]:
    """The contents of `config.json`, see `describe_config`; the hash proves that they are those that were written."""
    described = read_object(folder.config)
    kinds = {"config": dict, "hashed": dict, "hash": str}
    if any(not isinstance(described.get(name), kind) for name, kind in kinds.items()):
        raise UserError(f"{folder.config} is damaged: it needs the tables config and hashed, and the text hash")
    if hash_values(described["hashed"]) != described["hash"]:
        raise UserError(f"{folder.config} was changed after it was written (its hash does not match): restore it")
    return described


def check_records(records: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """The records, if each has what every reader needs."""
    for number, record in enumerate(records, start=1):
        sound = isinstance(record.get("kind"), str)
        if sound and record["kind"] in ("epoch", "averaged"):
            sound = _is_count(record.get("epoch")) and _is_count(record.get("step")) and _has_figures(record)
        if not sound:
            raise UserError(f"{path} is damaged: line {number} is not a record of a run")
    return records


def _has_figures(record: Mapping[str, Any]) -> bool:
    figures = record.get("validation", 0)
    if not isinstance(figures, dict):
        return figures is None and record["kind"] == "epoch"
    penalty = record.get(PENALTY, 0.0)
    weighted = ("weighted_accuracy", "weighted_loss", "weighted_count")
    named = ("accuracy", "loss", *(weighted if "weighted_accuracy" in figures else ()))
    known = all(isinstance(figures.get(name, ""), int | float | None) for name in named)
    return known and isinstance(penalty, int | float)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 0


LeaveOut: TypeAlias = Callable[[Path, UserError], None]


def find_folders(runs: Path) -> list[RunFolder]:
    """All folders below one that may be runs, by name."""
    with name_refusals(runs):
        return [RunFolder(path) for path in sorted(runs.iterdir())] if runs.is_dir() else []


@dataclass(frozen=True, kw_only=True)
class RunLine:
    """A run in a list.   reason: of a failure.   best: the record of its best epoch."""

    name: str
    method: str
    seed: int
    state: str
    reason: str
    done: int
    epochs: int
    best: Mapping[str, Any] | None


def list_lines(runs: Path, leave_out: LeaveOut) -> Iterator[RunLine]:
    """A line for every run below a folder, by name.   leave_out: is told of those that cannot be read."""
    for folder in find_folders(runs):
        try:
            with name_refusals(folder.path):
                line = _read_line(folder) if folder.config.exists() else None
        except UserError as error:
            leave_out(folder.path, error)
            continue
        if line is not None:
            yield line


def _read_line(folder: RunFolder) -> RunLine:
    """Without reading every value of the config, which takes longer than all the rest: its hash proves them whole."""
    config, status = read_description(folder)["config"], folder.read_status()
    try:
        method, seed, epochs = config["method"]["name"], config["seed"], config["train"]["epochs"]
    except (KeyError, TypeError) as error:
        raise UserError(f"{folder.config} is damaged: it lacks the method, the seed or the epochs") from error
    if not isinstance(method, str) or not isinstance(seed, int) or not isinstance(epochs, int):
        raise UserError(f"{folder.config} is damaged: its method, seed or epochs are of another type")
    best = find_best(check_records(read_lines(folder.records), folder.records))
    return RunLine(
        name=folder.path.name,
        method=method,
        seed=seed,
        state=status["state"],
        reason=status["reason"],
        done=status["epoch"],
        epochs=epochs,
        best=best,
    )
