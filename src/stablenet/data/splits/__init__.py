"""How a data set is divided into training, validation and test: pure functions from an image list and a seed.

The ways to split are registered by name below; each returns a manifest. In reading order: `counting` (class counts, and
rows taken by them), `classic` (leave one domain out), `unbalanced`, `flexible` and `adversarial`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from stablenet.data.image_list import ComposedList, ImageList
from stablenet.data.manifest import Manifest
from stablenet.data.splits.adversarial import AdversarialSettings, split_adversarial
from stablenet.data.splits.classic import ClassicSettings, split_classic
from stablenet.data.splits.flexible import FlexibleSettings, UnbalancedFlexibleSettings, split_flexible
from stablenet.data.splits.unbalanced import UnbalancedSettings, split_unbalanced
from stablenet.errors import UserError
from stablenet.registry import Registry
from stablenet.values import convert, read_fields


@dataclass(frozen=True)
class Setting:
    """A way to split: its parameters, the function, and the kind of table it takes."""

    parameters: type[Any]
    split: Callable[[Any, Any, int], Manifest]
    table: type[ImageList] | type[ComposedList]
    title: str


SETTINGS: Registry[Setting] = Registry("setting")
SETTINGS.add("classic", Setting(ClassicSettings, split_classic, ImageList, "leave one domain out"))
SETTINGS.add("unbalanced", Setting(UnbalancedSettings, split_unbalanced, ImageList, "one source domain dominates"))
SETTINGS.add(
    "flexible",
    Setting(FlexibleSettings, split_flexible, ImageList, "every class has its own source and target domains"),
)
SETTINGS.add(
    "unbalanced+flexible",
    Setting(UnbalancedFlexibleSettings, split_flexible, ImageList, "… and its own dominant domain"),
)
SETTINGS.add(
    "adversarial",
    Setting(AdversarialSettings, split_adversarial, ComposedList, "dominant backgrounds swap classes at test"),
)


def read_parameters(setting: str, parameters: Mapping[str, Any], where: str = "") -> Any:
    """A setting's own settings dataclass from plain values.   where: their dotted name, for messages."""
    kind = SETTINGS[setting].parameters
    known = [field.name for field in fields(kind)]
    strange = [name for name in parameters if name not in known]
    if strange:
        name = f"{where}.{strange[0]}" if where else strange[0]
        raise UserError(f"the setting {setting} has no parameter {name}: it has {', '.join(known)}")
    return read_fields(kind, parameters, where)


def split_table(table: ImageList | ComposedList, setting: str, seed: int = 0, **parameters: Any) -> Manifest:
    """Split a table by a setting's name; unknown parameters, wrong values and unfitting tables are named."""
    return apply_setting(table, setting, convert(seed, int, "seed"), parameters)


def apply_setting(
    table: ImageList | ComposedList, setting: str, seed: int, parameters: Mapping[str, Any], where: str = ""
) -> Manifest:
    """`split_table` for parameters that have a dotted name in a config."""
    chosen = SETTINGS[setting]
    if not isinstance(table, chosen.table):
        need = "images in domains" if chosen.table is ImageList else "digits and backgrounds, as mnist-m has"
        raise UserError(f"the setting {setting} needs {need}; {table.name} is of the other kind")
    if any(field.name not in parameters and field.default is MISSING for field in fields(chosen.parameters)):
        raise UserError(f"the setting {setting} needs a target: one of {', '.join(table.domains)}")
    return chosen.split(table, read_parameters(setting, parameters, where), seed)


__all__ = [
    "SETTINGS",
    "AdversarialSettings",
    "ClassicSettings",
    "FlexibleSettings",
    "Setting",
    "UnbalancedFlexibleSettings",
    "UnbalancedSettings",
    "apply_setting",
    "read_parameters",
    "split_table",
]
