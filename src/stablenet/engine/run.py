"""The run folder: its files, whether training may use it, and loading a run from it.

The fields of the records are listed in `stablenet.engine`. The table `weights.parquet`, with values of the last epoch:

    id, label, domain   as in the manifest, in its order
    weight              mean one over the set or the batch; for weights per batch, from the sample's last batch
    offset              added to the logit of the sample's class; 0 without offsets
    context             log p(label | context) − log p(label): how strongly the context predicts the sample's label
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pandas as pd
from torch import Tensor

from stablenet.data.manifest import Manifest
from stablenet.engine.config import HASH_DIGITS, RunConfig, compare, hash_values, read_config
from stablenet.engine.identity import identify, name_version, read_contents, recall_version
from stablenet.engine.ranking import PENALTY
from stablenet.errors import UserError
from stablenet.files import is_locked, name_refusals, read_lines, read_object, remove_lock, write_json, write_whole
from stablenet.frames import read_frame
from stablenet.values import SettingError, Whole, read_fields

if TYPE_CHECKING:
    from stablenet.algorithms import Context
    from stablenet.data.augment import Transform
    from stablenet.data.loader import PartSamples
    from stablenet.engine.run_data import RunData
    from stablenet.models import Network


LeaveOut: TypeAlias = Callable[[Path, UserError], None]

NEUTRAL = {"weight": 1.0, "offset": 0.0, "context": 0.0}  # of a sample in unweighted training


def tabulate_weights(manifest: Manifest, columns: Mapping[str, Tensor]) -> pd.DataFrame:
    """Tabulate a method's `sample_columns`."""
    rows = manifest.part("train")
    label = rows["label"].to_numpy()
    table = pd.DataFrame(
        {
            "id": rows["id"],
            "label": np.array(manifest.classes, object)[label],
            "domain": np.array(manifest.domains, object)[rows["domain"].to_numpy()],
        }
    )
    for name, value in {**NEUTRAL, **columns}.items():
        if isinstance(value, Tensor):
            found = value.detach().float().cpu().numpy()
            table[name] = found if found.ndim == 1 else found[np.arange(len(label)), label]
        else:
            table[name] = np.full(len(rows), value, np.float32)
    return table


def save_weights(path: Path, table: pd.DataFrame) -> None:
    """Write the table; the same table gives the same bytes."""
    write_whole(path, lambda partial: table.to_parquet(partial, engine="pyarrow", compression="zstd", index=False))


def read_weights(path: Path) -> pd.DataFrame:
    table = read_frame(path)
    lacking = [name for name in ("id", "label", "domain", *NEUTRAL) if name not in table]
    if lacking:
        raise UserError(f"{path} is damaged: it has no column {lacking[0]!r}")
    return table


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


def describe_config(
    config: RunConfig, manifest: Manifest, root: Path | None, version: str | None = None
) -> dict[str, Any]:
    """The contents of `config.json`, to which training adds stored_side: the config as given, hashed values, hash.

    version: see `identify`.
    """
    identity = identify(config, read_contents(config, root, manifest), version)
    return {"config": config.plain(), "hashed": identity.hashed, "hash": identity.hash}


def choose_folder(described: dict[str, Any], config: RunConfig, runs: Path, chosen: Path | None) -> RunFolder:
    """The folder of a config, by its hash, or the one chosen by the user."""
    return RunFolder(chosen or runs / f"{config.name}-{described['hash'][:HASH_DIGITS]}")


def find_version(folder: RunFolder, config: RunConfig) -> str:
    """The version of the method's defaults with which the folder's run was begun; today's for a new one."""
    if not folder.config.exists():
        return name_version(config)
    return recall_version(config, read_description(folder)["hashed"])


def open_folder(folder: RunFolder, described: dict[str, Any], manifest: Manifest, resume: bool) -> bool:
    """Prepare the folder for training; return False if the run has already finished.

    Raises for a folder of another config, showing the difference, and for a run with a checkpoint unless `resume`.
    """
    if folder.config.exists():
        old = read_description(folder)
        if old["hash"] != described["hash"]:
            lines = "\n  ".join(compare(old["hashed"], described["hashed"]))
            raise UserError(
                f"{folder.path} belongs to another config; choose another folder, or undo the difference:\n  {lines}"
            )
        status = folder.read_status()
        if status["state"] == FINISHED:
            return False
        if not resume and folder.checkpoint.exists():
            raise UserError(
                f"{folder.path} already contains this run, {status['state']} at step {status['step']}: "
                "continue it with --resume, or delete the folder to start again"
            )
        return True
    if folder.path.exists() and any(folder.path.glob("[!.]*")):
        raise UserError(f"{folder.path} exists and is not a run folder: choose another one")
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the run folder {folder.path} cannot be created: {error.strerror}; choose another --runs"
        ) from error
    manifest.save(folder.manifest)
    folder.set_status(RUNNING, 0, 0)
    write_json(folder.config, described)
    return True


@dataclass(frozen=True)
class Run:
    """A run folder with at least a config.   stored_side: of its square images, None where they kept their size."""

    folder: RunFolder
    config: RunConfig
    hash: str
    stored_side: int | None = None

    @property
    def path(self) -> Path:
        return self.folder.path

    @cached_property
    def manifest(self) -> Manifest:
        return Manifest.load(self.folder.manifest)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.manifest.classes

    @property
    def records(self) -> list[dict[str, Any]]:
        """All records so far; see `stablenet.engine` for their fields."""
        return check_records(read_lines(self.folder.records), self.folder.records)

    @property
    def oracle(self) -> list[dict[str, Any]]:
        """Target metrics per epoch, if requested. Only the selection rule `oracle` may read them."""
        return read_lines(self.folder.oracle)

    @property
    def status(self) -> dict[str, Any]:
        """{"state": running, killed, interrupted, failed or finished, "reason", "epoch", "step"}"""
        return self.folder.read_status()

    @property
    def keeps_weights(self) -> bool:
        """Whether its method has sample weights or offsets and reports them."""
        from stablenet.algorithms import ALGORITHMS, Algorithm

        return ALGORITHMS[self.config.method.name].sample_columns is not Algorithm.sample_columns

    def weights(self) -> pd.DataFrame:
        """Sample weights and offsets, a row per training sample: id, label, domain, weight, offset, context.

        See `read_weights`.
        """

        if self.folder.weights.exists():
            return read_weights(self.folder.weights)
        if not self.keeps_weights:
            raise UserError(
                f"the run {self.path} has no weights: {self.config.method.name} does not weight single samples"
            )
        if self.status["state"] != FINISHED:
            raise UserError(f"the run {self.path} has not finished; its weights are written at the end of training")
        raise UserError(f"the run {self.path} was trained by a version that did not save weights: train it again")

    @cached_property
    def model(self) -> Network:
        """The model with the best source validation, in eval mode on the CPU."""
        return self.load_model("best")

    def load_model(self, which: str | int = "best") -> Network:
        """Load a model: images (b, 3, s, s) -> logits (b, classes).

        which: "best", "last", "worst-group", "worst-pseudo-group", "averaged", or an epoch (from 1).
        """
        from stablenet.algorithms import build_predictor
        from stablenet.engine.checkpoint import load_tensors, name_misfit

        path = self.folder.model(which)
        if not path.exists():
            hint = "train with --keep-epochs to keep every epoch" if isinstance(which, int) else "has it finished?"
            raise UserError(f"the run {self.path} has no model {which!r} ({hint})")
        tensors, meta = load_tensors(path)
        name, parameters, method = self.config.model.name, self.config.network_parameters, self.config.method
        with name_misfit(path):
            predictor = build_predictor(
                name, parameters, meta["adaptation"], method.name, method.parameters, self.context
            )
            predictor.load_state_dict(tensors)
        return predictor.eval()

    @property
    def context(self) -> Context:
        """The context with which the run's method was built."""
        from stablenet.algorithms import Context

        pretrained = bool(self.config.model.pretrained)
        return Context.of_split(self.manifest, self.config.train.epochs, self.config.seed, pretrained)

    @property
    def transform(self) -> Transform:
        """The evaluation transform: pixels (b, H, W, 3) uint8 and keys to images (b, 3, s, s)."""
        return self.open_data().evaluation_transform

    def open_data(self, root: Path | None = None) -> RunData:
        """The split with its pixels by part; the source is read once for all parts. root: folder of the source."""
        from stablenet.engine.run_data import RunData

        return RunData(replace(self.config.data, store_size=self.stored_side), self.manifest, root)

    def open_part(self, part: str, root: Path | None = None) -> PartSamples:
        """One part of the split with its pixels. root: folder of the source."""
        return self.open_data(root).open_part(part)


def load_run(path: Path | str) -> Run:
    """Load a run from its folder."""
    folder = RunFolder(Path(path))
    if not folder.config.exists():
        raise UserError(f"{path} is not a run folder: it has no config.json; `stablenet runs` lists existing runs")
    described = read_description(folder)
    try:
        config = read_config(described["config"])
    except SettingError as error:
        raise UserError(f"{folder.config} is damaged, or of a newer version: {error}") from error
    return Run(folder, config, described["hash"], described.get("stored_side", config.data.store_size))


def read_description(folder: RunFolder) -> dict[str, Any]:
    """The contents of `config.json`, see `describe_config`; the hash proves that they are those that were written."""
    described = read_object(folder.config)
    kinds = {"config": dict, "hashed": dict, "hash": str}
    if any(not isinstance(described.get(name), kind) for name, kind in kinds.items()):
        raise UserError(f"{folder.config} is damaged: it needs the tables config and hashed, and the text hash")
    if hash_values(described["hashed"]) != described["hash"]:
        raise UserError(f"{folder.config} was changed after it was written (its hash does not match): restore it")
    return described


@dataclass(frozen=True)
class Decided:
    """What a method decided before training.   acts: whether it does more than plain training.   reason: a clause."""

    acts: bool
    reason: str

    def __str__(self) -> str:
        return f"{'it acts' if self.acts else 'it trains plainly'}: {self.reason}"


def find_decision(records: Sequence[Mapping[str, Any]]) -> Decided | None:
    """The decision in a run's records; None for methods that decide nothing, and runs that were told whether to act."""
    for record in records:
        if record["kind"] == "solve" and "decision" in record:
            return Decided(bool(record["acts"]), str(record["decision"]))
    return None


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


def list_runs(runs: Path, leave_out: LeaveOut | None = None) -> Iterator[Run]:
    """All runs below a folder, by name.   leave_out: is told of those that cannot be read, instead of raising."""
    with name_refusals(runs):
        paths = sorted(runs.iterdir()) if runs.is_dir() else []
    for path in paths:
        try:
            with name_refusals(path):
                found = load_run(path) if RunFolder(path).config.exists() else None
        except UserError as error:
            if leave_out is None:
                raise
            leave_out(path, error)
            continue
        if found is not None:
            yield found
