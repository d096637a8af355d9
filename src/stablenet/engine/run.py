"""The run folder: its files, whether training may use it, and loading a run from it.

The fields of the records are listed in `stablenet.engine`. The table `weights.parquet`, with values of the last epoch:

    id, label, domain   as in the manifest, in its order
    weight              mean one over the set or the batch; for weights per batch, from the sample's last batch
    offset              added to the logit of the sample's class; 0 without offsets
    context             log p(label | context) − log p(label): how strongly the context predicts the sample's label
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from torch import Tensor

from stablenet.data.manifest import Manifest
from stablenet.engine.config import RunConfig, compare, read_config
from stablenet.engine.identity import identify, name_version, read_contents, recall_version
from stablenet.engine.run_folder import (
    FINISHED,
    RUNNING,
    LeaveOut,
    RunFolder,
    check_records,
    find_folders,
    read_description,
)
from stablenet.errors import UserError
from stablenet.files import name_refusals, read_lines, write_json
from stablenet.frames import read_frame, write_parquet
from stablenet.values import SettingError

if TYPE_CHECKING:
    from stablenet.algorithms import Context
    from stablenet.data.augment import Transform
    from stablenet.data.loader import PartSamples
    from stablenet.engine.run_data import RunData
    from stablenet.models import Network


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
    """Write the table."""
    write_parquet(table, path, compression="zstd")


def read_weights(path: Path) -> pd.DataFrame:
    table = read_frame(path)
    lacking = [name for name in ("id", "label", "domain", *NEUTRAL) if name not in table]
    if lacking:
        raise UserError(f"{path} is damaged: it has no column {lacking[0]!r}")
    return table


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
    return RunFolder(chosen or runs / config.name_folder(described["hash"]))


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


@dataclass(frozen=True)
class Decided:
    """What a method decided before training.   acts: whether it does more than plain training.   reason: a clause."""

    acts: bool
    reason: str

    def __str__(self) -> str:
        return f"{'it acts' if self.acts else 'it trains plainly'}: {self.reason}"


def find_decision(records: Sequence[Mapping[str, Any]]) -> Decided | None:
    """The decision in a run's records; None where the method, or the config, left nothing to decide."""
    for record in records:
        if record["kind"] == "solve" and "decision" in record:
            return Decided(bool(record["acts"]), str(record["decision"]))
    return None


def list_runs(runs: Path, leave_out: LeaveOut | None = None) -> Iterator[Run]:
    """All runs below a folder, by name.   leave_out: is told of those that cannot be read, instead of raising."""
    for folder in find_folders(runs):
        try:
            with name_refusals(folder.path):
                found = load_run(folder.path) if folder.config.exists() else None
        except UserError as error:
            if leave_out is None:
                raise
            leave_out(folder.path, error)
            continue
        if found is not None:
            yield found
