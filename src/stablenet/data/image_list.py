"""The contents of a source: images, digits and backgrounds to blend, or cut-outs. No pixels are read but masks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stablenet.data.columns import PART
from stablenet.data.compose import Placement, mask_cutout, paste_cutout
from stablenet.data.decode import decode, decode_cutout, read_bytes
from stablenet.data.manifest import Manifest
from stablenet.errors import UserError, write_count
from stablenet.files import resolve
from stablenet.registry import old_function, unknown_name

IMAGE_COLUMNS = ("id", "path", "label", "domain")
DIGIT_COLUMNS = ("id", "label", "subset")


@dataclass(frozen=True)
class ImageList:
    """Images with a class and a domain, in a folder or in a zip archive that is read without unpacking.

    rows: columns id (str, unique, the same on every machine: POSIX path relative to the data set), path (str,
    inside root), label (int, into classes), domain (int, into domains), sorted by id; sources with a
    published split also have subset (str, for example "train"), users' own images with a given split have part (str,
    "train", "validation" or "test").
    title: what users call these images, where the name of the source does not say it.
    listed: whether the images were named one by one, so that other files may lie in their folder.
    """

    name: str
    root: Path
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    rows: pd.DataFrame
    notes: tuple[str, ...] = ()
    title: str = ""
    listed: bool = False

    def __post_init__(self) -> None:
        missing = [column for column in IMAGE_COLUMNS if column not in self.rows]
        if missing:
            raise ValueError(f"the table {self.name} lacks the columns {missing}")
        _check_rows(self.name, self.rows)
        _check_range(self.name, "label", self.rows["label"], len(self.classes))
        _check_range(self.name, "domain", self.rows["domain"], len(self.domains))

    def open_bytes(self, path: str) -> bytes:
        """Read the encoded image at a row's path."""
        return read_bytes(self.root, path)

    @property
    def known_as(self) -> str:
        return self.title or self.name

    @property
    def contexts(self) -> tuple[str, ...]:
        """The domains; none where there is only one, which says nothing."""
        return self.domains if len(self.domains) > 1 else ()

    @property
    def given_parts(self) -> dict[str, int]:
        """Images of every part of a given split, empty where none is given."""
        counts = self.rows[PART].value_counts().to_dict() if PART in self.rows else {}
        return {part: int(counts[part]) for part in ("train", "validation", "test") if part in counts}

    def describe(self) -> str:
        """What was found, in words."""
        contexts = write_count(len(self.contexts), "context") if self.contexts else "no contexts"
        given = f"given split: {self.describe_parts()}" if self.given_parts else "no given split"
        images, classes = write_count(len(self.rows), "image"), write_count(len(self.classes), "class")
        return f"{images} in {classes}, {contexts}, {given}"

    def describe_parts(self) -> str:
        """The given split in words: "train 80, test 20"."""
        return ", ".join(f"{part} {count:,}" for part, count in self.given_parts.items())

    def contains(self, file: Path) -> bool:
        """Whether a file written there would be among the images: below their folder or, of a list, one of them."""
        file = resolve(file)
        if self.listed:
            return any(resolve(self.root / path) == file for path in self.rows["path"] if file.name in path)
        return self.root.is_dir() and file.is_relative_to(resolve(self.root))


@dataclass(frozen=True)
class ComposedList:
    """Digits and the background images they are blended over; each background image is a domain.

    rows: columns id (str, unique), label (int), subset ("train" or "test"); row k is read_digits()[k].
    read_digits: () -> (n, 28, 28) uint8.   read_backgrounds: () -> (H, W, 3) uint8 per domain, H, W >= 28.
    """

    name: str
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    rows: pd.DataFrame
    read_digits: Callable[[], NDArray[np.uint8]]
    read_backgrounds: Callable[[], list[NDArray[np.uint8]]]

    def __post_init__(self) -> None:
        missing = [column for column in DIGIT_COLUMNS if column not in self.rows]
        if missing:
            raise ValueError(f"the table {self.name} lacks the columns {missing}")
        _check_rows(self.name, self.rows)
        _check_range(self.name, "label", self.rows["label"], len(self.classes))


def make_image_list(
    name: str,
    root: Path,
    classes: Iterable[str],
    domains: Iterable[str],
    records: list[dict[str, object]],
    notes: tuple[str, ...] = (),
) -> ImageList:
    """Build an image list from one record per image (keys id, path, label, domain, optionally subset)."""
    if not records:
        raise UserError(f"no images found for {name} in {root}")
    rows = pd.DataFrame.from_records(records).astype({"label": "int64", "domain": "int64"})
    rows = rows.sort_values("id", kind="stable", ignore_index=True)
    return ImageList(name, root, tuple(classes), tuple(domains), rows, notes)


make_image_table = old_function("make_image_table", make_image_list)


def check_member_name(name: str, archive: Path) -> None:
    """Reject archive members that point outside the archive (path traversal)."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if name.startswith(("/", "\\")) or ".." in parts or (parts and parts[0].endswith(":")):
        raise UserError(
            f"the archive {archive} contains the unsafe path {name!r}, which points outside it: "
            "nothing was read; download the archive again"
        )


def _check_rows(name: str, rows: pd.DataFrame) -> None:
    if rows.empty:
        raise UserError(f"no images found for {name}")
    repeated = rows.loc[rows["id"].duplicated(), "id"]
    if len(repeated):
        raise UserError(f"{len(repeated)} ids of {name} occur more than once, for example {repeated.iloc[0]!r}")


def _check_range(name: str, column: str, values: pd.Series[int], size: int) -> None:
    if values.min() < 0 or values.max() >= size:
        raise ValueError(f"the table {name} has a {column} outside 0..{size - 1}")


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
