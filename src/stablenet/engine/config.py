"""What a run computes: data, model, method, training. Two runs with equal configs give equal records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from stablenet.values import (
    Count,
    NonNegative,
    PlainName,
    Positive,
    Seed,
    ShareBelowOne,
    Whole,
    check_fields,
    read_fields,
    require,
)

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

    source: PlainName = "embedded"
    setting: str = "adversarial"
    parameters: dict[str, Any] = field(default_factory=dict)
    split_seed: int | None = None
    manifest: str = ""
    store_size: Count | None = None
    image_size: Count = 28
    augment: bool = False
    augmentation: dict[str, Any] = field(default_factory=dict)
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[Positive, Positive, Positive] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """name, pretrained, parameters: as `stablenet.models.build_network` takes them."""

    name: str = "paper-cnn"
    pretrained: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """name: of `stablenet list`.   parameters: the method's own settings."""

    name: PlainName = "erm"
    parameters: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class SwadConfig:
    """Used with averaging="swad".   every: steps between two looks at the source validation loss.
    n_converge: looks without a smaller loss after which the window opens.   n_tolerance: looks beyond the threshold
    that end it.   tolerance_ratio: how far the threshold lies above the loss at the start, as a share of it.
    """

    every: Count = 100  # its paper, for PACS; 50 for VLCS
    n_converge: Count = 3
    n_tolerance: Count = 6
    tolerance_ratio: NonNegative = 0.3  # its paper; 0.2 for VLCS

    def __post_init__(self) -> None:
        check_fields(self)
        least = f"at least n_converge, {self.n_converge}"
        require(self.n_tolerance >= self.n_converge, "n_tolerance", least, self.n_tolerance)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """batch_size: of all processes together.   max_steps: stop there, even inside an epoch.
    schedule: constant; steps (times `decay` at the `milestones`, epochs from 0); cosine (to zero, over all steps).
    precision: auto is bf16 on a GPU, else 32.   balance_domains: every batch has equally many of every domain.
    drop_last: leave out a short last batch; shapes then stay the same, which graphs of a network's passes need.
    log_every: steps between two step records.   sync_batchnorm: one statistic over all GPUs.
    averaging: swad also keeps a model of averaged weights, beside any method.   swad: how.
    """

    epochs: Count = 30
    max_steps: Count | None = None
    batch_size: Count = 128  # the authors' published code; the paper gives none
    optimizer: Optimizer = "sgd"
    learning_rate: Positive = 0.01
    momentum: ShareBelowOne = 0.9  # the paper gives none; usual in this field
    nesterov: bool = False
    weight_decay: NonNegative = 5e-4
    schedule: Rate = "steps"
    milestones: tuple[Whole, ...] = (24,)
    decay: Positive = 0.1
    precision: Precision = "auto"
    balance_domains: bool = False
    drop_last: bool = True
    log_every: Count = 50
    sync_batchnorm: bool = True
    averaging: Averages = "none"
    swad: SwadConfig = field(default_factory=SwadConfig)

    def __post_init__(self) -> None:
        check_fields(self)
        require(list(self.milestones) == sorted(self.milestones), "milestones", "rising", self.milestones)
        require(not self.nesterov or self.momentum > 0, "nesterov", "false without momentum", True)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run. label: how people call it; it is no part of the hash."""

    label: PlainName = ""
    seed: Seed = 0
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        check_fields(self)

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
