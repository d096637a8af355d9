"""The contents of a source: a list of images, or digits and backgrounds to blend. No pixels are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stablenet.data.columns import PART
from stablenet.data.decode import read_bytes
from stablenet.errors import UserError

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
        contexts = f"{len(self.contexts)} contexts" if self.contexts else "no contexts"
        given = f"given split: {self.describe_parts()}" if self.given_parts else "no given split"
        return f"{len(self.rows):,} images in {len(self.classes)} classes, {contexts}, {given}"

    def describe_parts(self) -> str:
        """The given split in words: "train 80, test 20"."""
        return ", ".join(f"{part} {count:,}" for part, count in self.given_parts.items())

    def contains(self, file: Path) -> bool:
        """Whether a file written there would be among the images: below their folder or, of a list, one of them."""
        file = file.resolve()
        if self.listed:
            return any((self.root / path).resolve() == file for path in self.rows["path"] if file.name in path)
        return self.root.is_dir() and file.is_relative_to(self.root.resolve())


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


def make_image_table(
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
