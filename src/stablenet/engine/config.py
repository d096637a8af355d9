"""What a run computes: data, model, method, training. Two runs with equal configs give equal records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from stablenet.errors import UserError
from stablenet.fields import read_fields

Rate = Literal["constant", "steps", "cosine"]
Optimizer = Literal["sgd", "adam", "adamw"]
Precision = Literal["auto", "32", "bf16"]
Averages = Literal["none", "swad"]
HASH_DIGITS = 12  # of the hash in a run folder's name


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """source, setting, parameters: as `stablenet data split` takes them.   split_seed: None takes the run's seed.
    manifest: a file made by `stablenet data split`, in place of source, setting, parameters and split_seed.
    store_size: side of the stored squares; None keeps the images' own size.   image_size: what the network sees.
    augment: crop, flip and colours on training images.   augmentation: fields of `AugmentSettings` that differ.
    mean, std: channel statistics images are normalised with.
    """

    source: str = "embedded"
    setting: str = "adversarial"
    parameters: dict[str, Any] = field(default_factory=dict)
    split_seed: int | None = None
    manifest: str = ""
    store_size: int | None = None
    image_size: int = 28
    augment: bool = False
    augmentation: dict[str, Any] = field(default_factory=dict)
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        _require(self.image_size >= 1, "data.image_size", "at least 1", self.image_size)
        _require(len(self.mean) == 3 == len(self.std), "data.mean and data.std", "three numbers each", self.mean)
        _require(min(self.std) > 0, "data.std", "positive", self.std)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """name, pretrained, parameters: as `stablenet.models.build_network` takes them."""

    name: str = "paper-cnn"
    pretrained: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """name: of `stablenet list`.   parameters: the method's own settings."""

    name: str = "erm"
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SwadConfig:
    """Used with averaging="swad".   every: steps between two looks at the source validation loss.
    n_converge: looks without a smaller loss after which the window opens.   n_tolerance: looks beyond the threshold
    that end it.   tolerance_ratio: how far the threshold lies above the loss at the start, as a share of it.
    """

    every: int = 100  # its paper, for PACS; 50 for VLCS
    n_converge: int = 3
    n_tolerance: int = 6
    tolerance_ratio: float = 0.3  # its paper; 0.2 for VLCS

    def __post_init__(self) -> None:
        _require(self.every >= 1, "train.swad.every", "at least 1", self.every)
        _require(self.n_converge >= 1, "train.swad.n_converge", "at least 1", self.n_converge)
        least = f"at least n_converge, {self.n_converge}"
        _require(self.n_tolerance >= self.n_converge, "train.swad.n_tolerance", least, self.n_tolerance)
        _require(self.tolerance_ratio >= 0, "train.swad.tolerance_ratio", "0 or more", self.tolerance_ratio)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """batch_size: of all processes together.   max_steps: stop there, even inside an epoch.
    schedule: constant; steps (times `decay` at the `milestones`, epochs from 0); cosine (to zero, over all steps).
    precision: auto is bf16 on a GPU, else 32.   balance_domains: every batch has equally many of every domain.
    drop_last: leave out a short last batch; shapes then stay the same, which graphs of a network's passes need.
    log_every: steps between two step records.   sync_batchnorm: one statistic over all GPUs.
    averaging: swad also keeps a model of averaged weights, beside any method.   swad: how.
    """

    epochs: int = 30
    max_steps: int | None = None
    batch_size: int = 128  # the authors' published code; the paper gives none
    optimizer: Optimizer = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.9  # the paper gives none; usual in this field
    nesterov: bool = False
    weight_decay: float = 5e-4
    schedule: Rate = "steps"
    milestones: tuple[int, ...] = (24,)
    decay: float = 0.1
    precision: Precision = "auto"
    balance_domains: bool = False
    drop_last: bool = True
    log_every: int = 50
    sync_batchnorm: bool = True
    averaging: Averages = "none"
    swad: SwadConfig = field(default_factory=SwadConfig)

    def __post_init__(self) -> None:
        _require(self.epochs >= 1, "train.epochs", "at least 1", self.epochs)
        _require(self.max_steps is None or self.max_steps >= 1, "train.max_steps", "at least 1", self.max_steps)
        _require(self.batch_size >= 1, "train.batch_size", "at least 1", self.batch_size)
        _require(self.learning_rate > 0, "train.learning_rate", "positive", self.learning_rate)
        _require(0 <= self.momentum < 1, "train.momentum", "in [0, 1)", self.momentum)
        _require(self.weight_decay >= 0, "train.weight_decay", "0 or more", self.weight_decay)
        _require(self.decay > 0, "train.decay", "positive", self.decay)
        _require(self.log_every >= 1, "train.log_every", "at least 1", self.log_every)
        _require(list(self.milestones) == sorted(self.milestones), "train.milestones", "rising", self.milestones)
        _require(not self.nesterov or self.momentum > 0, "train.nesterov", "false without momentum", True)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run. label: how people call it; it is no part of the hash."""

    label: str = ""
    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        _require(self.seed >= 0, "seed", "0 or more", self.seed)
        _require("/" not in self.label and not self.label.startswith("."), "label", "a plain name", self.label)

    @property
    def name(self) -> str:
        """The readable part of the run folder's name."""
        return f"{self.label or self.data.source}-{self.method.name}-seed{self.seed}"

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain


def read_config(values: Mapping[str, Any]) -> RunConfig:
    """A config from plain values; unknown names and wrong types are named."""
    return read_fields(RunConfig, values)


def fingerprint(config: RunConfig, manifest_hash: str = "", weights_hash: str = "") -> dict[str, Any]:
    """What the hash is taken of: files by their contents, so that it is the same on every machine."""
    plain = config.plain()
    del plain["label"]
    if config.train.averaging == "none":
        del plain["train"]["averaging"], plain["train"]["swad"]  # nothing reads them
    if config.data.manifest:
        kept = ("store_size", "image_size", "augment", "augmentation", "mean", "std")
        plain["data"] = {"manifest": manifest_hash, **{name: plain["data"][name] for name in kept}}
    if weights_hash:
        plain["model"]["pretrained"] = weights_hash
    return plain


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values, `over` winning; tables are joined, everything else replaced."""
    joined = dict(base)
    for name, value in over.items():
        old = joined.get(name)
        joined[name] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return joined


def hash_values(values: Mapping[str, Any]) -> str:
    """SHA-256 over the canonical JSON of plain values."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def compare(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """One line per setting that differs: `train.epochs: 30 → 60`."""
    lines = []
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines += compare(before, after, f"{prefix}{name}.")
        elif before != after:
            lines.append(f"{prefix}{name}: {_show(old, name)} → {_show(new, name)}")
    return lines


def _show(values: Mapping[str, Any], name: str) -> str:
    return json.dumps(values[name]) if name in values else "(nothing)"


def _require(holds: bool, name: str, expected: str, found: object) -> None:
    if not holds:
        raise UserError(f"{name} must be {expected}, got {found!r}")
