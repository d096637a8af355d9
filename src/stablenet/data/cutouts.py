"""Foregrounds cut out of their images, and the backgrounds they are pasted over. No pixels are read here but masks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stablenet.data.compose import Placement, mask_cutout, paste_cutout
from stablenet.data.decode import decode, decode_cutout, read_bytes
from stablenet.data.image_list import ImageList
from stablenet.data.manifest import Manifest
from stablenet.errors import UserError
from stablenet.registry import unknown_name

JOIN = "+"  # "buildings+street" is one context made of two


@dataclass(frozen=True)
class PlacedList(ImageList):
    """Cut-outs of one part with their placements; composed, each is an image of `side` × `side` pixels.

    rows: also background (str, a path inside `backgrounds`), u, v, scale, as in `Placement`.
    """

    backgrounds: Path = Path()
    side: int = 0

    @property
    def placements(self) -> tuple[Placement, ...]:
        columns = (self.rows[name].tolist() for name in ("background", "u", "v", "scale"))
        return tuple(Placement(*values) for values in zip(*columns, strict=True))

    def compose(self) -> Iterator[NDArray[np.uint8]]:
        """The images (side, side, 3), one by one; `prepare_part` makes many of them faster."""
        for path, placement in zip(self.rows["path"], self.placements, strict=True):
            below = decode(read_bytes(self.backgrounds, placement.background))
            yield paste_cutout(decode_cutout(self.open_bytes(path)), below, placement, self.side)

    def find_masks(self) -> NDArray[np.bool_]:
        """Where the foregrounds are, (n, side, side): pixels of which a cut-out is at least half opaque."""
        cutouts = (decode_cutout(self.open_bytes(path)) for path in self.rows["path"])
        return np.stack([mask_cutout(c, p, self.side) for c, p in zip(cutouts, self.placements, strict=True)])


@dataclass(frozen=True)
class CutoutList:
    """Foregrounds and backgrounds that a split brings together.

    foregrounds: label is the class, domain its kind, a finer class (a breed); equal to the class where there is none.
    backgrounds: domain is the context.   Both may have the column subset, "train" or "test".
    levels: what classes and kinds are called, for example ("species", "breed").
    """

    name: str
    foregrounds: ImageList
    backgrounds: ImageList
    levels: tuple[str, str] = ("class", "kind")

    @property
    def classes(self) -> tuple[str, ...]:
        return self.foregrounds.classes

    @property
    def domains(self) -> tuple[str, ...]:
        return self.backgrounds.domains

    @property
    def rows(self) -> pd.DataFrame:
        return self.foregrounds.rows

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.foregrounds.notes, *self.backgrounds.notes)

    def choose(self, level: str = "", only: Sequence[str] = (), contexts: Sequence[str] = ()) -> CutoutList:
        """The foregrounds of some classes, labelled by a level, and the backgrounds of some contexts.

        level: one of `levels`; "" for the first.   only: classes or kinds; none for all. Names of the labelled level
        keep this order.   contexts: names, or several joined by "+", in this order; none for all.
        """
        level = level or self.levels[0]
        if level not in self.levels:
            raise UserError(unknown_name(f"level of {self.name}", level, self.levels))
        foregrounds = _choose_classes(self.foregrounds, self.levels.index(level) == 1, only, self.name)
        return replace(
            self, foregrounds=foregrounds, backgrounds=_choose_contexts(self.backgrounds, contexts, self.name)
        )

    def place(self, manifest: Manifest, rows: pd.DataFrame, suffix: str = "") -> PlacedList:
        """Rows of a manifest with their files.   suffix: of the list's name."""
        if not manifest.has_cutouts:
            raise UserError(f"the manifest of {manifest.source} has no cut-outs: it was not made for {self.name}")
        paths = rows["foreground"].map(self.foregrounds.rows.set_index("id")["path"])
        below = rows["background"].map(self.backgrounds.rows.set_index("id")["path"])
        lost = pd.concat([rows.loc[paths.isna(), "foreground"], rows.loc[below.isna(), "background"]])
        if len(lost):
            raise UserError(f"{self.name} has no image {lost.iloc[0]}: was the manifest made from another source?")
        return PlacedList(
            name=self.name + suffix,
            root=self.foregrounds.root,
            classes=manifest.classes,
            domains=manifest.domains,
            rows=rows.assign(path=paths, background=below).reset_index(drop=True),
            backgrounds=self.backgrounds.root,
            side=_read_side(manifest),
        )


def find_masks(table: CutoutList, manifest: Manifest, part: str, ids: Sequence[str] | None = None) -> NDArray[np.bool_]:
    """Known foregrounds of a part's samples, (n, side, side) bool, in the order of its rows or of `ids`."""
    rows = manifest.part(part)
    if ids is not None:
        rows = rows.set_index("id").loc[list(ids)].reset_index()
    return table.place(manifest, rows).find_masks()


def _read_side(manifest: Manifest) -> int:
    side = manifest.parameters.get("side")
    if not isinstance(side, int):
        raise UserError(f"the manifest of {manifest.source} states no side of the composed images: split again")
    return side


def _choose_classes(images: ImageList, by_kind: bool, only: Sequence[str], name: str) -> ImageList:
    known = {*images.classes, *images.domains}
    for wanted in only:
        if wanted not in known:
            raise UserError(unknown_name(f"class of {name}", wanted, known))
    rows = images.rows
    if only:
        classes, kinds = np.array(images.classes, object), np.array(images.domains, object)
        kept = np.isin(classes[rows["label"]], only) | np.isin(kinds[rows["domain"]], only)
        rows = rows[kept]
    names, column = (images.domains, "domain") if by_kind else (images.classes, "label")
    found = [name for k, name in enumerate(names) if (rows[column] == k).any()]
    found.sort(key=lambda name: only.index(name) if name in only else len(only))  # stable: the others keep their order
    number = {names.index(own): k for k, own in enumerate(found)}
    rows = rows.assign(label=rows[column].map(number)).reset_index(drop=True)
    return replace(images, classes=tuple(found), rows=rows)


def _choose_contexts(images: ImageList, contexts: Sequence[str], name: str) -> ImageList:
    groups = [group.split(JOIN) for group in contexts] or [[context] for context in images.domains]
    named = [context for group in groups for context in group]
    for context in named:
        if context not in images.domains:
            raise UserError(unknown_name(f"context of {name}", context, images.domains))
    if len(set(named)) < len(named):
        raise UserError(f"the contexts {', '.join(contexts)} name {_first_repeated(named)} more than once")
    number = {images.domains.index(context): k for k, group in enumerate(groups) for context in group}
    rows = images.rows[images.rows["domain"].isin(number)]
    rows = rows.assign(domain=rows["domain"].map(number)).reset_index(drop=True)
    return replace(images, domains=tuple(JOIN.join(group) for group in groups), rows=rows)


def _first_repeated(names: Sequence[str]) -> str:
    return next(name for k, name in enumerate(names) if name in names[:k])
