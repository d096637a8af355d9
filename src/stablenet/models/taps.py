"""Names for features inside a network: `last`, `stage1`, a module's own path; with `:form` how they are handed over."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.errors import UserError
from stablenet.registry import unknown_name
from stablenet.weighting.inputs import pool_maps

LAST = "last"
FORMS = ("meanstd", "mean", "std", "maps")


@dataclass(frozen=True)
class Tap:
    """place: `last`, a stage (`stage1`) or the path of a module (`layer2.0.conv1`).

    form: meanstd (B, 2C), mean or std (B, C) over positions, or maps as the module gives them.
    """

    place: str
    form: str

    def __str__(self) -> str:
        return self.place if self.place == LAST else f"{self.place}:{self.form}"


def parse_tap(text: str) -> Tap:
    """`stage1` is `stage1:meanstd`; `last` has no form."""
    place, colon, form = text.partition(":")
    if place == LAST and colon:
        raise UserError(f"the tap {text!r} has a form, but `last` is (batch, width) already: write {LAST!r}")
    form = form or FORMS[0]
    if form not in FORMS:
        raise UserError(unknown_name("form of a tap", form, FORMS))
    return Tap(place, form)


def shape_tap(features: Tensor, form: str, channels_last: bool) -> Tensor:
    """What a module gave, in the form asked for.

    features: (B, C, H, W) maps, (B, H, W, C) with `channels_last`, (B, T, C) tokens or (B, C).
    """
    if form == "maps" or features.ndim == 2:
        return features
    if features.ndim == 3 or channels_last:
        features = features.movedim(-1, 1)
    if form == "meanstd":
        return pool_maps(features)
    flat = features.flatten(2).float()
    return flat.mean(2) if form == "mean" else torch.std(flat, 2, correction=0)
