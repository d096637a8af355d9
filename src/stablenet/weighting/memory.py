"""The memory of past batches: the paper's averaged groups, or a queue of real samples.

All state is in persistent buffers and, for the counters that the host needs without reading the device, in the module's
extra state, so that `state_dict` carries everything a resumed run needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stablenet.errors import UserError
from stablenet.weighting.settings import WeightingSettings

RUNNING_MEAN_BATCHES = 10  # published code: a plain mean over the first ten batches
STATE = ("features", "measure", "labels")


@dataclass(frozen=True)
class WeightedRows:
    """Rows of features with what belongs to them.

    features: (r, m).   measure: (r,) weights, or logits where the memory holds those.
    labels: (r,) integers, (r, C) columns, or None when labels take no part.
    """

    features: Tensor
    measure: Tensor
    labels: Tensor | None


class Memory(nn.Module, ABC):
    """k groups of `rows` rows. `recall` gives the filled rows to join to a batch, `write` takes a batch in."""

    features: Tensor
    measure: Tensor
    labels: Tensor

    def __init__(self, settings: WeightingSettings) -> None:
        super().__init__()
        self._settings = settings
        for name in STATE:
            self.register_buffer(name, torch.empty(0))
        self.reset()

    def reset(self) -> None:
        """Forget everything, shapes included."""
        for name in STATE:
            setattr(self, name, torch.empty(0, device=self.features.device))
        self.label_width: int | None = None  # columns of averaged labels; None where labels are kept as they are
        self.rows = self._settings.memory_rows or 0  # of one group; 0 until the first batch
        self.filled = 0  # rows that hold something
        self.stored = 0  # batches taken in; a queue counts rows

    def check(self, features: Tensor, labels: Tensor | None) -> None:
        """Refuse a batch that cannot be joined or stored, before any state changes.

        features: (B, m).   labels: (B,) classes, (B, C) columns, or None.
        """
        if self.rows and len(features) > self.rows and self._settings.groups:
            raise UserError(
                f"a batch of {len(features)} is larger than the memory's {self.rows} rows; build StableWeighting with "
                f"memory_rows={len(features)} (method.parameters.overrides.memory_rows in a config), or call reset() "
                "first"
            )
        if self.features.numel() and features.shape[1] != self.features.shape[-1]:
            raise UserError(
                f"features have {features.shape[1]} columns, the memory was filled with "
                f"{self.features.shape[-1]}; pass the same layers every time, or call reset() first"
            )
        if self.features.numel() and not self._fits(labels):
            raise UserError(
                f"labels are {_name_form(labels)}, but the memory was filled with others: pass labels of the same form "
                "every time (classes, or columns of one number), or call reset() first"
            )

    def _fits(self, labels: Tensor | None) -> bool:
        """Whether labels have the form of those that are kept."""
        if labels is None or not self.labels.numel():
            return (labels is None) == (not self.labels.numel())
        kept_columns = self.labels.shape[len(self._shape()) :]  # of one row: () for classes
        averaged_classes = labels.ndim == 1 and self.label_width is not None
        return averaged_classes or labels.shape[1:] == kept_columns

    def start(self, z: Tensor, labels: Tensor | None) -> None:
        """Take the shapes of the first batch, z (B, m) and labels (B,) or (B, C); later batches change nothing."""
        if self.features.numel() or self._settings.groups == 0:
            return
        self.rows = self.rows or len(z)
        shape = self._shape()
        self.features = z.new_zeros(*shape, z.shape[1])
        self.measure = z.new_full(shape, 0.0 if self._settings.memory_holds == "logits" else 1.0)
        if labels is not None and self.label_width is not None:
            self.labels = z.new_zeros(*shape, self.label_width)
        elif labels is not None:
            as_columns = labels.ndim == 2  # which are compared in float32
            self.labels = labels.new_zeros(*shape, *labels.shape[1:], dtype=z.dtype if as_columns else labels.dtype)

    @abstractmethod
    def recall(self) -> WeightedRows | None:
        """The filled rows; where weights are held, each group's sum to its number of rows."""

    @abstractmethod
    def write(self, batch: WeightedRows, valid: Tensor | None) -> None:
        """Take the batch into the buffers, unless `valid` (a scalar on the device) says that it must leave no trace."""

    @abstractmethod
    def advance(self, size: int) -> None:
        """Count a batch of that size, which was written."""

    def place(self) -> Hashable:
        """Determines, together with a batch's shape, which rows are read and written: same place, same device work."""
        buffers = tuple(getattr(self, name).data_ptr() for name in STATE)
        return buffers, self.filled, self._position()

    @abstractmethod
    def _position(self) -> Hashable:
        """Where and how the next batch is written."""

    @abstractmethod
    def _shape(self) -> tuple[int, ...]:
        """The leading dimensions of the buffers."""

    def _columns(self, batch: WeightedRows) -> list[tuple[Tensor, Tensor]]:
        """(buffer, new rows) of everything that is stored."""
        pairs = [(self.features, batch.features), (self.measure, batch.measure)]
        if batch.labels is not None:
            pairs.append((self.labels, batch.labels))
        return pairs

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.rows, self.filled, self.stored])

    def set_extra_state(self, state: Tensor) -> None:
        self.rows, self.filled, self.stored = (int(value) for value in state)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        adopt_saved_shapes(self, STATE, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)
        averaged = self._settings.memory == "average" and self.labels.numel()
        self.label_width = self.labels.shape[-1] if averaged else None


class AveragedMemory(Memory):
    """The paper's memory (Eq. 10, save_w): every group a running mean of batches, row by row, with its own α.

    Z_Gi ← α_i·Z_Gi + (1 − α_i)·Z_L, and the same for weights and, when label pairs are on, for one-hot labels: a
    remembered row then carries the same mixture of labels as of features. The first batch fills the groups. A short
    batch updates the first rows only. (The appendix writes Z_Gi in the weights' line; that is read as a slip.)
    """

    def start(self, z: Tensor, labels: Tensor | None) -> None:
        super().start(z, labels)
        if self._settings.memory_start == "running-mean" and self._settings.groups:
            self.filled = self.rows  # with zeros, as in the published code

    def recall(self) -> WeightedRows | None:
        if not self.filled:
            return None
        measure = self.measure[:, : self.filled]
        if self._settings.memory_holds == "weights":
            measure = measure / measure.mean(1, keepdim=True)
        labels = self.labels[:, : self.filled].flatten(0, 1) if self.labels.numel() else None
        return WeightedRows(self.features[:, : self.filled].flatten(0, 1), measure.flatten(), labels)

    def write(self, batch: WeightedRows, valid: Tensor | None) -> None:
        size = len(batch.features)
        known = min(self.filled, size)
        for group, alpha in enumerate(self._settings.alpha_of_groups()):
            share = 1 - self._alpha_now(alpha)
            weight = share if valid is None else share * valid.to(self.features.dtype)
            for buffer, new in self._columns(batch):
                buffer[group, :known].lerp_(new[:known], weight)
                buffer[group, known:size] = new[known:]

    def advance(self, size: int) -> None:
        self.filled = max(self.filled, size)
        self.stored += 1

    def _alpha_now(self, alpha: float) -> float:
        if self._settings.memory_start == "running-mean" and self.stored < RUNNING_MEAN_BATCHES:
            return self.stored / (self.stored + 1)
        return alpha

    def _position(self) -> Hashable:
        return tuple(self._alpha_now(alpha) for alpha in self._settings.alpha_of_groups())

    def _shape(self) -> tuple[int, ...]:
        return (self._settings.groups, self.rows)


class QueueMemory(Memory):
    """The last k·rows samples as they were. Rows are real, so their covariance is that of the data."""

    def recall(self) -> WeightedRows | None:
        if not self.filled:
            return None
        measure = self.measure[: self.filled]
        if self._settings.memory_holds == "weights":
            measure = measure / measure.mean()
        labels = self.labels[: self.filled] if self.labels.numel() else None
        return WeightedRows(self.features[: self.filled], measure, labels)

    def write(self, batch: WeightedRows, valid: Tensor | None) -> None:
        size, capacity = len(batch.features), len(self.features)
        first = self.stored % capacity  # a queue counts rows, which gives the place to write
        head = min(size, capacity - first)
        for buffer, new in self._columns(batch):
            for start, rows in ((first, new[:head]), (0, new[head:])):
                old = buffer[start : start + len(rows)]
                old.copy_(rows if valid is None else torch.where(valid, rows, old))

    def advance(self, size: int) -> None:
        self.filled = min(len(self.features), self.filled + size)
        self.stored += size

    def _position(self) -> Hashable:
        return self.stored % len(self.features) if len(self.features) else 0

    def _shape(self) -> tuple[int, ...]:
        return (self._settings.groups * self.rows,)


def _name_form(labels: Tensor | None) -> str:
    if labels is None:
        return "missing"
    return "classes" if labels.ndim == 1 else f"{labels.shape[1]} columns"


def make_memory(settings: WeightingSettings) -> Memory:
    return QueueMemory(settings) if settings.memory == "queue" else AveragedMemory(settings)


def adopt_saved_shapes(module: nn.Module, names: Sequence[str], state_dict: Mapping[str, Any], prefix: str) -> None:
    """Give buffers the shapes and types of a saved state, on their own device: shapes are known only after a batch."""
    for name in names:
        if prefix + name in state_dict:
            setattr(module, name, torch.empty_like(state_dict[prefix + name], device=getattr(module, name).device))


def refuse_saved_shapes(
    module: nn.Module, names: Sequence[str], state_dict: Mapping[str, Any], prefix: str, advice: str
) -> None:
    """Raise for a saved state whose buffers are of other shapes than the module's, or are not all there.

    A state without the first of them is none of this module's kind, which torch reports.
    """
    if prefix + names[0] not in state_dict:
        return
    own = {prefix + name: buffer for name, buffer in module.named_buffers()}
    for name in (prefix + name for name in names):
        found, expected = (tuple(one[name].shape) if name in one else "missing" for one in (state_dict, own))
        if found != expected:
            raise UserError(f"the saved state does not fit: {name} is {found} there, but {expected} here; {advice}")
