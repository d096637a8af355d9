"""What a source says of itself: origin, licence, expected counts, layouts, and how to get and read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from stablenet.data.table import ComposedTable, ImageTable
from stablenet.errors import UserError
from stablenet.registry import Registry

Table: TypeAlias = ImageTable | ComposedTable


@dataclass(frozen=True, kw_only=True)
class Download:
    """One public file. md5 is what its publisher states; without one the archive's own CRCs are checked."""

    url: str
    file: str
    md5: str | None = None


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set by name.

    counts: images per domain as published; empty where the user's own data come in.
    layouts: the folder trees that are accepted, one line each.
    by_hand: what to fetch and where to put it when there is no download, or no network.
    """

    name: str
    title: str
    origin: str
    licence: str
    layouts: tuple[str, ...]
    read: Callable[[Path], Table]
    counts: Mapping[str, int] = field(default_factory=dict)
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""
    needs_root: bool = True


SOURCES: Registry[Source] = Registry("data source")


def read_source(name: str, root: Path | None) -> Table:
    """The table of a source, read from the folder or archive at root, if it needs one."""
    source = SOURCES[name]
    if not source.needs_root:
        return source.read(Path())
    if root is None:
        raise UserError(f"where is {name}? Give its folder or archive with --root or the variable STABLENET_DATA")
    if not root.exists():
        raise UserError(f"{root} does not exist: give the folder or archive that holds {name}")
    return source.read(root)


def compare_counts(name: str, found: Mapping[str, int], published: Mapping[str, int]) -> tuple[str, ...]:
    """One note per domain or class whose size is not the published one."""
    return tuple(
        f"{name}: {key} has {found.get(key, 0)} images where {count} are published"
        for key, count in published.items()
        if found.get(key, 0) != count
    )
