"""The inputs of the weighting: features, layers and labels, checked once, with one sentence for each mistake.

On an accelerator values are checked without waiting: the verdict is read when the next batch comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.errors import UserError
from stablenet.weighting.memory import Memory

Features = Tensor | Mapping[str, Tensor]


@dataclass(frozen=True)
class Layers:
    """The layers whose columns stand side by side, to name a column in a message."""

    names: tuple[str, ...]
    widths: tuple[int, ...]

    def column(self, index: int) -> str:
        for name, width in zip(self.names, self.widths, strict=True):
            if index < width:
                return f"column {index} of {name}"
            index -= width
        raise IndexError(index)


def join_layers(features: Features, least: int = 1) -> tuple[Tensor, Layers]:
    """One matrix (B, m) in float32, cut off from the graph, of one layer (B, m) or several by name.

    least: samples there must be; a process's share of a joined batch may have none.
    """
    layers = dict(features) if isinstance(features, Mapping) else {"features": features}
    if not layers:
        raise UserError("features is an empty dict; pass at least one layer of shape (batch, width)")
    for name, layer in layers.items():
        _check_layer(name, layer, least)
    sizes = {name: len(layer) for name, layer in layers.items()}
    if len(set(sizes.values())) > 1:
        raise UserError(f"all layers must have the same number of samples, got {sizes}")
    columns = [layer.detach().to(torch.float32) for layer in layers.values()]
    joined = columns[0] if len(columns) == 1 else torch.cat(columns, 1)
    return joined, Layers(tuple(layers), tuple(layer.shape[1] for layer in layers.values()))


def _check_layer(name: str, layer: object, least: int) -> None:
    if not isinstance(layer, Tensor):
        raise UserError(f"{name} must be a tensor of shape (batch, width), got {type(layer).__name__}")
    if layer.ndim != 2:
        raise UserError(
            f"{name} must have shape (batch, width), got {tuple(layer.shape)}; "
            "flatten it, or pool feature maps with stablenet.weighting.pool_maps"
        )
    if not layer.is_floating_point():
        raise UserError(f"{name} must be floating-point, got {layer.dtype}; convert it, e.g. with .float()")
    if layer.shape[0] < least or layer.shape[1] == 0:
        raise UserError(f"{name} is empty, shape {tuple(layer.shape)}; at least one sample and column are needed")


LARGEST_CLASS = 10**6  # a class more is a column more wherever labels are written as columns


def read_labels(labels: Tensor | None, size: int, needed: bool) -> Tensor | None:
    """Labels, one per sample: (B,) int64 classes, or (B, C) float32 columns; None where they are not needed.

    On the CPU their values are checked, too; elsewhere that is `judge_values`' part.
    """
    if labels is None:
        if needed:
            raise UserError(
                "label pairs are on, so labels are needed: call weighting(features, labels=y), "
                "or build StableWeighting with pairs='features'"
            )
        return None
    if not isinstance(labels, Tensor):
        raise UserError(f"labels must be a tensor of shape ({size},) or ({size}, C), got {type(labels).__name__}")
    if labels.ndim not in (1, 2) or len(labels) != size:
        raise UserError(f"labels must have one row per sample, {size} of them, got shape {tuple(labels.shape)}")
    if not needed:
        return None
    if labels.is_complex() or (labels.ndim == 1 and labels.is_floating_point()):
        raise UserError(
            f"labels of shape {tuple(labels.shape)} must be integer classes, got {labels.dtype}; "
            "pass targets of a regression as columns, labels[:, None]"
        )
    if labels.ndim == 2 and not labels.shape[1]:
        raise UserError(f"labels have no columns, shape {tuple(labels.shape)}: pass classes (B,) or columns (B, C)")
    read = labels.detach().to(torch.int64 if labels.ndim == 1 else torch.float32)
    if read.device.type == "cpu" and len(read):
        _check_label_values(read)
    return read


def _check_label_values(labels: Tensor) -> None:
    if labels.ndim == 2:
        if not bool(torch.isfinite(labels).all()):
            raise UserError(f"labels hold {BAD_LABELS}; no weights were learned from that batch")
    elif int(labels.max()) > LARGEST_CLASS or int(labels.min()) < -LARGEST_CLASS:
        raise UserError(
            f"labels hold the class {int(labels.abs().max())}: number the classes from 0, without gaps; "
            f"at most {LARGEST_CLASS:,} are possible"
        )


def check_finite(z: Tensor, layers: Layers) -> None:
    """Raise for NaN or inf in z (n, m), naming the first column that holds one. Reads the device."""
    bad = ~torch.isfinite(z)
    if bool(bad.any()):
        column = int(bad.any(0).int().argmax())
        raise UserError(nonfinite_message(layers, column))


def nonfinite_message(layers: Layers, column: int) -> str:
    return (
        f"{layers.column(column)} holds NaN or inf; no weights were learned from that batch and the memory is as "
        "before; look for a diverging loss or a bad input"
    )


def pool_maps(maps: Tensor) -> Tensor:
    """Mean and standard deviation of every channel over all positions: context lives in these statistics.

    maps: (B, C, …) feature maps of a convolution.   Returns (B, 2C), means first, in float32.
    """
    if maps.ndim < 3:
        raise UserError(f"maps must have shape (batch, channels, positions…), got {tuple(maps.shape)}")
    flat = maps.flatten(2).float()
    return torch.cat([flat.mean(2), flat.std(2, correction=0)], 1)


BAD_LABELS = "NaN, inf, or numbers too large for float32"
ALL_GOOD, BAD_LABEL = -1, -2  # verdicts; any other is the index of the first column with a bad value


class PendingCheck:
    """The check of the latest batch, on its way from the device to the host.

    The copy to the host is asynchronous, and reading it at the next call waits only for work that was queued before the
    previous backward pass: the device never idles. Batches that are replayed note theirs on the device, where it is
    read when one comes that is not.
    """

    def __init__(self) -> None:
        self._event: torch.cuda.Event | None = None
        self._verdict: Tensor | None = None
        self._noted: Tensor | None = None  # the first bad verdict of replayed batches
        self._replayed = False
        self.clear()

    def clear(self) -> None:
        self._waiting: tuple[Layers, bool] | None = None
        if self._replayed and self._noted is not None:
            self._noted.fill_(ALL_GOOD)
        self._replayed = False

    def watch(self, verdict: Tensor, layers: Layers, first: bool) -> None:
        """Send the verdict of a batch on its way. first: the memory's first batch, to be undone as a whole if bad."""
        if self._noted is None:
            self._noted = torch.full_like(verdict, ALL_GOOD)
        if verdict.device.type == "cuda":
            if self._event is None:
                self._event = torch.cuda.Event()
                self._verdict = torch.empty((), dtype=verdict.dtype, pin_memory=True)
            assert self._verdict is not None
            self._verdict.copy_(verdict, non_blocking=True)
            self._event.record()
        else:
            self._verdict = verdict
        self._waiting = layers, first

    def note(self, verdict: Tensor) -> None:
        """Keep a verdict on the device; a batch was watched before. Work that can be recorded."""
        assert self._noted is not None
        self._noted.copy_(torch.where(self._noted == ALL_GOOD, verdict, self._noted))

    def count_replay(self) -> None:
        """A batch has been replayed: what was noted is to be read."""
        self._replayed = True

    def raise_if_bad(self, memory: Memory) -> None:
        """Raise for a batch that was bad, the one watched last or one replayed since.

        Its weights were ones and the memory kept none of it.
        """
        if self._waiting is None or self._verdict is None:
            return
        if self._event is not None:
            self._event.synchronize()
        verdict, (layers, first), when = int(self._verdict), self._waiting, "in the previous batch"
        if verdict == ALL_GOOD and self._replayed and self._noted is not None:
            verdict, first, when = int(self._noted), False, "in an earlier batch"
        self.clear()
        if verdict == ALL_GOOD:
            return
        if first:
            memory.reset()
        if verdict == BAD_LABEL:
            if memory.label_width is None:
                raise UserError(f"{when}, labels held {BAD_LABELS}; the memory is as before")
            raise UserError(
                f"{when}, a label was beyond the {memory.label_width} classes whose labels the memory averages, or "
                f"labels held {BAD_LABELS}; build StableWeighting with num_classes"
            )
        raise UserError(f"{when}, {nonfinite_message(layers, verdict)}")

    def __reduce__(self) -> tuple[type[PendingCheck], tuple[()]]:
        return PendingCheck, ()  # events belong to a device; a copy starts without a verdict
