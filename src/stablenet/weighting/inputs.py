"""What the weighting accepts: checked once, at the border, in one sentence each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.errors import UserError

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


def check_labels(labels: Tensor | None, size: int, needed: bool) -> None:
    """Labels: one per sample, (B,) of integers or (B, C) of columns."""
    if labels is None:
        if needed:
            raise UserError(
                "label pairs are on, so labels are needed: call weighting(features, labels=y), "
                "or build StableWeighting with pairs='features'"
            )
        return
    if labels.ndim not in (1, 2) or len(labels) != size:
        raise UserError(f"labels must have one row per sample, {size} of them, got shape {tuple(labels.shape)}")
    if needed and labels.ndim == 1 and (labels.is_floating_point() or labels.is_complex()):
        raise UserError(
            f"labels of shape ({size},) must be integer classes, got {labels.dtype}; "
            "pass targets of a regression as columns, labels[:, None]"
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
