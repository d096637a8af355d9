"""Runs after training: their config, split, records and models, from files alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stablenet.data.manifest import Manifest
from stablenet.engine.config import RunConfig, read_config
from stablenet.engine.folder import FINISHED, RunFolder
from stablenet.errors import UserError
from stablenet.files import read_json, read_lines

if TYPE_CHECKING:
    import pandas as pd

    from stablenet.algorithms import Context
    from stablenet.data.augment import Transform
    from stablenet.data.pipeline import Samples
    from stablenet.engine.parts import RunData
    from stablenet.models import Network


@dataclass(frozen=True)
class Run:
    """A run folder that holds at least a config."""

    folder: RunFolder
    config: RunConfig
    hash: str

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
        return read_lines(self.folder.records)

    @property
    def oracle(self) -> list[dict[str, Any]]:
        """Target figures per epoch, where they were asked for. No selection may read them but the oracle's."""
        return read_lines(self.folder.oracle)

    @property
    def status(self) -> dict[str, Any]:
        """{"state": running, killed, interrupted, failed or finished, "reason", "epoch", "step"}"""
        return self.folder.read_status()

    @property
    def keeps_weights(self) -> bool:
        """Whether its method weighs single samples, or gives them offsets, and tells so."""
        from stablenet.algorithms import ALGORITHMS, Algorithm

        return ALGORITHMS[self.config.method.name].sample_columns is not Algorithm.sample_columns

    def weights(self) -> pd.DataFrame:
        """What entered the loss, a row per training sample: id, label, domain, weight, offset, context.

        See `stablenet.engine.weights`.
        """
        from stablenet.engine.weights import read_weights

        if self.folder.weights.exists():
            return read_weights(self.folder.weights)
        if not self.keeps_weights:
            raise UserError(
                f"the run {self.path} has no weights: {self.config.method.name} gives none to single samples"
            )
        if self.status["state"] != FINISHED:
            raise UserError(f"the run {self.path} has not finished; its weights are written at the end of training")
        raise UserError(f"the run {self.path} was trained before weights were kept; train it again to see them")

    @cached_property
    def model(self) -> Network:
        """The model of the best source validation, in eval mode on the CPU."""
        return self.load_model("best")

    def load_model(self, which: str | int = "best") -> Network:
        """The model "best", "last" or of an epoch (from 1): images (b, 3, s, s) -> logits (b, classes)."""
        from stablenet.algorithms import build_predictor
        from stablenet.engine.checkpoint import load_tensors

        path = self.folder.model(which)
        if not path.exists():
            hint = "train with --keep-epochs to keep every epoch" if isinstance(which, int) else "has it finished?"
            raise UserError(f"the run {self.path} has no model {which!r} ({hint})")
        tensors, meta = load_tensors(path)
        model, method = self.config.model, self.config.method
        predictor = build_predictor(
            model.name, model.parameters, meta["adaptation"], method.name, method.parameters, self.context
        )
        predictor.load_state_dict(tensors)
        return predictor.eval()

    @property
    def context(self) -> Context:
        """What the run's method knew of it."""
        from stablenet.algorithms import Context

        pretrained = bool(self.config.model.pretrained)
        return Context.of_split(self.manifest, self.config.train.epochs, self.config.seed, pretrained)

    @property
    def transform(self) -> Transform:
        """Pixels (b, H, W, 3) uint8 and keys to images (b, 3, s, s), as validation images are treated."""
        return self.open_data().evaluation_transform

    def open_data(self, root: Path | None = None) -> RunData:
        """The split with its pixels, part by part; the source is read once for all of them. root: where it lies."""
        from stablenet.engine.parts import RunData

        return RunData(self.config.data, self.manifest, root)

    def open_part(self, part: str, root: Path | None = None) -> Samples:
        """One part of the split with its pixels. root: where the source lies."""
        return self.open_data(root).open_part(part)


def load_run(path: Path | str) -> Run:
    """A run by its folder."""
    folder = RunFolder(Path(path))
    if not folder.config.exists():
        raise UserError(f"{path} is no run folder: it has no config.json; `stablenet runs` lists the runs there are")
    described = read_json(folder.config)
    return Run(folder, read_config(described["config"]), described["hash"])


def list_runs(runs: Path) -> Iterator[Run]:
    """All runs below a folder, by name."""
    for path in sorted(runs.glob("*/config.json")):
        yield load_run(path.parent)
