"""The settings: pure functions from a table and a seed to a manifest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any

from stablenet.data.manifest import Manifest
from stablenet.data.settings.adversarial import AdversarialSettings, split_adversarial
from stablenet.data.settings.classic import ClassicSettings, split_classic
from stablenet.data.settings.flexible import FlexibleSettings, UnbalancedFlexibleSettings, split_flexible
from stablenet.data.settings.unbalanced import UnbalancedSettings, split_unbalanced
from stablenet.data.table import ComposedTable, ImageTable
from stablenet.errors import UserError
from stablenet.registry import Registry


@dataclass(frozen=True)
class Setting:
    """A way to split: its parameters, the function, and the kind of table it takes."""

    parameters: type[Any]
    split: Callable[[Any, Any, int], Manifest]
    table: type[ImageTable] | type[ComposedTable]
    title: str


SETTINGS: Registry[Setting] = Registry("setting")
SETTINGS.add("classic", Setting(ClassicSettings, split_classic, ImageTable, "leave one domain out"))
SETTINGS.add("unbalanced", Setting(UnbalancedSettings, split_unbalanced, ImageTable, "one source domain dominates"))
SETTINGS.add(
    "flexible",
    Setting(FlexibleSettings, split_flexible, ImageTable, "every class has its own source and target domains"),
)
SETTINGS.add(
    "unbalanced+flexible",
    Setting(UnbalancedFlexibleSettings, split_flexible, ImageTable, "… and its own dominant domain"),
)
SETTINGS.add(
    "adversarial",
    Setting(AdversarialSettings, split_adversarial, ComposedTable, "dominant backgrounds swap classes at test"),
)


def split_table(table: ImageTable | ComposedTable, setting: str, seed: int = 0, **parameters: Any) -> Manifest:
    """Split a table by a setting's name; unknown parameters and unfitting tables are named."""
    chosen = SETTINGS[setting]
    known = [field.name for field in fields(chosen.parameters)]
    strange = [name for name in parameters if name not in known]
    if strange:
        raise UserError(f"the setting {setting} has no parameter {strange[0]}: it has {', '.join(known)}")
    if not isinstance(table, chosen.table):
        need = "images in domains" if chosen.table is ImageTable else "digits and backgrounds, as mnist-m has"
        raise UserError(f"the setting {setting} needs {need}; {table.name} is of the other kind")
    if any(field.name not in parameters and field.default is MISSING for field in fields(chosen.parameters)):
        raise UserError(f"the setting {setting} needs a target: one of {', '.join(table.domains)}")
    return chosen.split(table, chosen.parameters(**parameters), seed)


__all__ = [
    "SETTINGS",
    "AdversarialSettings",
    "ClassicSettings",
    "FlexibleSettings",
    "Setting",
    "UnbalancedFlexibleSettings",
    "UnbalancedSettings",
    "split_table",
]
