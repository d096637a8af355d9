"""How a data set is divided into training, validation and test: pure functions from an image list and a seed.

The ways to split are registered by name below; each returns a manifest. In reading order: `counting` (class counts, and
rows drawn by them), `plain` (given with the images, a random share held out, or leave one domain out: classic),
`flexible` (with unbalanced), `adversarial` and `correlated` (cut-outs with contexts correlated with their class).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any

from stablenet.data.image_list import ComposedList, CutoutList, ImageList
from stablenet.data.manifest import Manifest
from stablenet.data.sources.source import AnyImageList
from stablenet.data.splits.adversarial import AdversarialSettings, split_adversarial
from stablenet.data.splits.correlated import CorrelatedSettings, split_correlated
from stablenet.data.splits.flexible import (
    FlexibleSettings,
    UnbalancedFlexibleSettings,
    UnbalancedSettings,
    split_flexible,
    split_unbalanced,
)
from stablenet.data.splits.plain import (
    GIVEN,
    HELD_OUT,
    ClassicSettings,
    GivenSettings,
    HeldOutSettings,
    split_classic,
    split_given,
    split_held_out,
)
from stablenet.errors import UserError
from stablenet.registry import OLD_SPLIT, SPLIT, Registry, old_function, old_keyword
from stablenet.values import Seed, convert, read_fields


@dataclass(frozen=True)
class Split:
    """A way to split: its parameters, the function, and the kind of image list it takes."""

    parameters: type[Any]
    split: Callable[[Any, Any, int], Manifest]
    table: type[AnyImageList]
    title: str


SPLITS: Registry[Split] = Registry("split")
SPLITS.add(GIVEN, Split(GivenSettings, split_given, ImageList, "the split that your images come with"))
SPLITS.add(HELD_OUT, Split(HeldOutSettings, split_held_out, ImageList, "a share of every class, at random"))
SPLITS.add("classic", Split(ClassicSettings, split_classic, ImageList, "leave one domain out"))
SPLITS.add("unbalanced", Split(UnbalancedSettings, split_unbalanced, ImageList, "one source domain dominates"))
SPLITS.add(
    "flexible",
    Split(FlexibleSettings, split_flexible, ImageList, "every class has its own source and target domains"),
)
SPLITS.add(
    "unbalanced+flexible",
    Split(UnbalancedFlexibleSettings, split_flexible, ImageList, "… and its own dominant domain"),
)
SPLITS.add(
    "adversarial",
    Split(AdversarialSettings, split_adversarial, ComposedList, "dominant backgrounds swap classes at test"),
)
SPLITS.add(
    "correlated",
    Split(CorrelatedSettings, split_correlated, CutoutList, "every class mostly in its own context; test balanced"),
)
_KINDS: dict[type[AnyImageList], str] = {
    ImageList: "images in domains",
    ComposedList: "digits and backgrounds, as mnist-m has",
    CutoutList: "cut-outs and backgrounds, as pets-places has",
}


def choose_split(images: AnyImageList, parameters: Mapping[str, Any]) -> str:
    """The split where none is named: for images the given one; else `classic` with a target, `held-out` without."""
    if isinstance(images, ComposedList):
        return "adversarial"
    if isinstance(images, CutoutList):
        return "correlated"
    if "target" in parameters:
        return "classic"
    return GIVEN if images.given_parts else HELD_OUT


def read_parameters(split: str, parameters: Mapping[str, Any], where: str = "") -> Any:
    """A split's own settings dataclass from plain values.   where: their dotted name, for messages."""
    kind = SPLITS[split].parameters
    known = [field.name for field in fields(kind)]
    strange = [name for name in parameters if name not in known]
    if strange:
        name = f"{where}.{strange[0]}" if where else strange[0]
        raise UserError(f"the split {split} has no parameter {name}: it has {', '.join(known)}")
    return read_fields(kind, parameters, where)


@old_keyword(OLD_SPLIT, SPLIT)
def split_images(images: AnyImageList, /, split: str, seed: int = 0, **parameters: Any) -> Manifest:
    """Split images by a split's name, "" for the fitting one.

    Unknown parameters, wrong values and images that do not fit are named.
    """
    return apply_split(images, split, convert(seed, Seed, "seed"), parameters)


split_table = old_function("split_table", split_images)


def apply_split(
    images: AnyImageList, split: str, seed: int, parameters: Mapping[str, Any], where: str = ""
) -> Manifest:
    """`split_images` for parameters that have a dotted name in a config."""
    split = split or choose_split(images, parameters)
    chosen = SPLITS[split]
    if not isinstance(images, chosen.table):
        raise UserError(f"the split {split} needs {_KINDS[chosen.table]}; {images.name} has {_KINDS[type(images)]}")
    _refuse_given(images, split)
    if any(field.name not in parameters and _needs_value(field) for field in fields(chosen.parameters)):
        raise UserError(f"the split {split} needs a target: one of {', '.join(images.domains)}; {HELD_OUT} needs none")
    manifest = chosen.split(images, read_parameters(split, parameters, where), seed)
    if manifest.part("train").empty:
        raise UserError(f"the split {split} leaves no image of {images.name} to train on: choose other parameters")
    return manifest


def _refuse_given(images: AnyImageList, split: str) -> None:
    """A split that comes with the images is not silently ignored: its test images would be trained on."""
    if isinstance(images, ImageList) and images.given_parts and split != GIVEN:
        raise UserError(
            f"{images.known_as} comes with a split ({images.describe_parts()}), which {split} would ignore: "
            f"use the split {GIVEN}, or read the images without theirs (--column part=none, data.columns.part='none')"
        )


def _needs_value(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


__all__ = [
    "SPLITS",
    "AdversarialSettings",
    "ClassicSettings",
    "CorrelatedSettings",
    "FlexibleSettings",
    "GivenSettings",
    "HeldOutSettings",
    "Split",
    "UnbalancedFlexibleSettings",
    "UnbalancedSettings",
    "apply_split",
    "choose_split",
    "read_parameters",
    "split_images",
]
