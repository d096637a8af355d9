"""Features from inside a network: how taps are named, the forward hooks behind them, and a pass over a whole data set.

A tap is `last`, a stage (`stage1`) or a module's own path; with `:form` it says how the features are pooled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from stablenet.errors import UserError
from stablenet.registry import unknown_name
from stablenet.weighting.evidence import pool_border
from stablenet.weighting.inputs import pool_maps

LAST = "last"
MOST_EXTRA_TOKENS = 8  # a class token, one of distillation, registers
FORMS = ("meanstd", "border", "mean", "std", "maps")

B = TypeVar("B")


@dataclass(frozen=True)
class Tap:
    """place: `last`, a stage (`stage1`) or the path of a module (`layer2.0.conv1`).

    form: meanstd (B, 2C), the same over the border of the image alone, mean or std (B, C) over positions, or maps as
        the module gives them.
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


def shape_tap(features: Tensor, form: str, channels_last: bool = False) -> Tensor:
    """A module's output in the form asked for.

    features: (B, C, H, W) maps, (B, H, W, C) with `channels_last`, (B, T, C) tokens or (B, C).
    """
    if form == "maps" or features.ndim == 2:
        return features
    if features.ndim == 3 or channels_last:
        features = features.movedim(-1, 1)
    if form == "meanstd":
        return pool_maps(features)
    if form == "border":
        return pool_border(lay_out(features))
    flat = features.flatten(2).float()
    return flat.mean(2) if form == "mean" else torch.std(flat, 2, correction=0)


def lay_out(features: Tensor) -> Tensor:
    """Features (B, C, T) of tokens to maps (B, C, s, s); class and register tokens come before the s² of the image."""
    if features.ndim != 3:
        return features
    count = features.shape[2]
    side = math.isqrt(count)
    if count - side * side > MOST_EXTRA_TOKENS:
        raise UserError(f"{count} tokens do not form a square image, so its border is unknown: use the form 'meanstd'")
    maps: Tensor = features[..., count - side * side :].unflatten(2, (side, side))
    return maps


def list_places(places: Sequence[str]) -> tuple[str, ...]:
    """The places that were named, each once."""
    if not places or isinstance(places, str):
        found = f"got the text {places!r}" if places else "none was named"
        raise UserError(f"taps must be a list of modules' paths, such as ['layer1'], {found}")
    return tuple(dict.fromkeys(places))


class FeatureTaps:
    """Forward hooks on modules of a model, which keep their features of the latest forward pass.

    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(2))
    >>> taps = FeatureTaps(model, ["0"])
    >>> _ = model(torch.randn(8, 3, 6, 6))
    >>> taps.take()["0"].shape
    torch.Size([8, 8])

    places: paths as in `model.named_modules()`, for example "layer1", or "layer1:mean" with a form. By default maps
        (B, C, H, W) and tokens (B, T, C) are pooled to (B, 2C), mean and standard deviation over positions; vectors
        (B, C) stay as they are. If a module is used several times, its last use counts.
    stages: short names for paths.   also_known: further names to suggest when a place is unknown.
    detach: keep the features without their graph.   channels_last: whether maps are (B, H, W, C).
    pool: takes the place of the form: a module's output (B, …) to features.
    """

    def __init__(
        self,
        model: nn.Module,
        places: Sequence[str],
        *,
        stages: Mapping[str, str] | None = None,
        also_known: Sequence[str] = (),
        detach: bool = True,
        channels_last: bool = False,
        pool: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.places = list_places(places)
        self.training = True  # whether the latest pass was one of training
        self._detach, self._stop = detach, False
        self._caught: dict[str, Tensor] = {}
        modules, stages = dict(model.named_modules()), stages or {}
        found = []
        for name in self.places:
            tap = parse_tap(name)
            path = stages.get(tap.place, tap.place)
            if not path or path not in modules:
                raise UserError(unknown_name("tap", tap.place, (*also_known, *stages, *(m for m in modules if m))))
            found.append((name, modules[path], pool or partial(shape_tap, form=tap.form, channels_last=channels_last)))
        # Methods, not functions of this place: a copy of the model then keeps features of its own.
        self._handles = [
            module.register_forward_hook(partial(self._keep, name, shape)) for name, module, shape in found
        ]

    def take(self) -> dict[str, Tensor]:
        """The features (B, m) of the latest forward pass by place; they are handed over once."""
        missing = [name for name in self.places if name not in self._caught]
        if missing:
            raise UserError(
                f"the module {missing[0]!r} gave no features since the last loss: run the model on the batch first, "
                "and tap only modules that every forward pass uses"
            )
        caught = {name: self._caught[name] for name in self.places}
        self._caught.clear()
        return caught

    @contextmanager
    def stop_early(self) -> Iterator[None]:
        """A forward pass inside ends as soon as all features are there."""
        self._caught.clear()
        self._stop = True
        try:
            yield
        except _AllCaught:
            pass
        finally:
            self._stop = False

    def remove(self) -> None:
        """Remove the hooks from the model."""
        for handle in self._handles:
            handle.remove()

    def _keep(self, name: str, shape: Callable[[Tensor], Tensor], module: nn.Module, args: Any, output: Any) -> None:
        self.training = module.training
        first = output[0] if isinstance(output, tuple | list) else output  # transformers' blocks give tuples
        if not isinstance(first, Tensor) or first.ndim < 2:
            raise UserError(f"the module {name!r} gives no features of shape (batch, …): tap another one")
        # At once: the next layer may change the output in place.
        self._caught[name] = shape(first.detach() if self._detach else first)
        if self._stop and len(self._caught) == len(self.places):
            raise _AllCaught


class _AllCaught(Exception):
    """Ends a forward pass."""


@torch.no_grad()
def read_features(
    model: nn.Module,
    extract: Callable[[Tensor], Mapping[str, Tensor]],
    batches: Iterable[tuple[B, Tensor]],
    collect: Callable[[B, Mapping[str, Tensor]], None],
) -> None:
    """Pass a data set through the model as it is, in eval mode and without gradients, and collect its features.

    extract: images (B, …) to features (B, m) by name.   batches: each with its images.
    collect: is given every batch with its features. Afterwards every module is back in its own mode.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        for batch, images in batches:
            collect(batch, extract(images))
    finally:
        for module, training in modes.items():
            module.training = training
