"""The pixel store: images that are decoded once and then memory-mapped.

A store is a folder of three files: `pixels.bin` (uint8, N × H × W × 3), `images.parquet` (one row per image) and
`store.json` (everything else). `stablenet.data.prepare` writes them and renames the folder into place when all three
are on disk; opening checks that they belong together, and `check_store` that the pixels are unchanged.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from stablenet.data.cache import HEADER
from stablenet.data.check import Finding
from stablenet.data.image_list import ImageList, PlacedList
from stablenet.errors import UserError
from stablenet.files import read_bytes, read_object
from stablenet.frames import read_frame
from stablenet.values import Count, Whole, read_fields

FORMAT = 1
PIXELS, IMAGES = "pixels.bin", "images.parquet"
_LEFT_OUT = {"id", "stamp", "class", "domain", "reason"}  # of an image that could not be decoded


@dataclass(frozen=True, kw_only=True)
class Header:
    """The contents of `store.json`.

    size: the requested side; None if the images kept their original size.
    left_out: images that could not be decoded, each {id, stamp, class, domain, reason}.
    duplicates: groups of ids with the same content in more than one domain or class.
    images_sha256: of `images.parquet`, whose rows contain a CRC-32 of their pixels.
    """

    format: int
    source: str
    classes: list[str]
    domains: list[str]
    size: Count | None
    height: Count
    width: Count
    count: Whole
    images_sha256: str
    left_out: list[dict[str, str]]
    duplicates: list[list[str]]


@dataclass(frozen=True)
class Changes:
    """Changes in a source since its store was made: ids added, removed, and changed in content or label."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def __str__(self) -> str:
        parts = ((self.added, "added"), (self.removed, "removed"), (self.changed, "changed"))
        return ", ".join(f"{len(ids)} {word} (for example {ids[0]})" for ids, word in parts if ids)


class PixelStore:
    """Decoded images on disk, accessed by row number.

    rows: columns id, label, domain, stamp (size and time, or CRC, of the source file), content (SHA-256 of the
    source file) and crc (CRC-32 of the pixels); row k belongs to pixels[k].
    """

    def __init__(self, path: Path, header: Header, rows: pd.DataFrame) -> None:
        self.path = path
        self.header = header
        self.rows = rows

    @classmethod
    def open(cls, path: Path) -> PixelStore:
        """Open a store; raise if it is missing, incomplete or of another format."""
        header = _read_header(path)
        try:
            table = read_bytes(path / IMAGES)
        except UserError as error:
            raise _damaged(path, f"{IMAGES} cannot be read ({error})") from error
        if not (path / PIXELS).is_file():
            raise _damaged(path, f"{PIXELS} cannot be read: it is not a file")
        found = (path / PIXELS).stat().st_size
        if hashlib.sha256(table).hexdigest() != header.images_sha256:
            raise _damaged(path, f"the checksum of {IMAGES} does not match")
        expected = header.count * header.height * header.width * 3
        if found != expected:
            raise _damaged(path, f"{PIXELS} has {found} bytes, expected {expected}")
        rows = read_frame(path / IMAGES)
        for column, names in (("label", header.classes), ("domain", header.domains)):
            if len(rows) and not 0 <= rows[column].min() <= rows[column].max() < len(names):
                raise _damaged(path, f"{HEADER} names {len(names)} for the {column}s of its images, which have more")
        return cls(path, header, rows)

    def __len__(self) -> int:
        return self.header.count

    @property
    def ids(self) -> list[str]:
        return self.rows["id"].tolist()

    @cached_property
    def pixels(self) -> Tensor:
        """All images, (N, H, W, 3) uint8, memory-mapped."""
        shape = (self.header.count, self.header.height, self.header.width, 3)
        # Copy-on-write: torch requires writable memory, and the file must never change.
        return torch.from_numpy(np.memmap(self.path / PIXELS, np.uint8, mode="c", shape=shape))

    def read(self, indices: Tensor, out: Tensor | None = None) -> Tensor:
        """Images (b, H, W, 3) uint8 at the row numbers (b,) int64, into `out` if given."""
        return take_rows(self.pixels, indices, out)

    def verify(self) -> None:
        """Compare every image with its checksum; raise an error that lists the damaged ones."""
        pixels = self.pixels.numpy()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            found = list(pool.map(zlib.crc32, pixels))
        bad = self.rows["id"][np.asarray(found, np.int64) != self.rows["crc"].to_numpy()]
        if len(bad):
            raise _damaged(self.path, f"{len(bad)} images do not match their checksums: {', '.join(bad)}")

    def compare(self, table: ImageList) -> Changes:
        """Changes in the source since the store was made, by file stamps, labels and domains."""
        old = _describe(self.rows, self.header.classes, self.header.domains)
        old |= {e["id"]: (e["stamp"], e["class"], e["domain"]) for e in self.header.left_out}
        new = _describe(table.rows.assign(stamp=read_stamps(table)), table.classes, table.domains)
        return Changes(
            added=tuple(sorted(new.keys() - old.keys())),
            removed=tuple(sorted(old.keys() - new.keys())),
            changed=tuple(sorted(key for key in old.keys() & new.keys() if old[key] != new[key])),
        )

    def check_source(self, table: ImageList) -> None:
        """Raise if the source has changed since it was decoded."""
        changes = self.compare(table)
        if changes:
            raise UserError(
                f"the source of the store {self.path} has changed since it was made: {changes}; "
                "run `stablenet data prepare` again"
            )


def take_rows(pixels: Tensor, indices: Tensor, out: Tensor | None = None) -> Tensor:
    """pixels[indices] along the first axis, into `out` if given.

    NumPy copies in this thread only. torch would divide this small task among all cores, and if they are busy, its
    threads wait for each other longer than the copy takes.
    """
    if len(indices) and not 0 <= indices.min() <= indices.max() < len(pixels):
        raise IndexError(f"rows must be in 0..{len(pixels) - 1}")
    if out is None:
        out = torch.empty((len(indices), *pixels.shape[1:]), dtype=pixels.dtype)
    np.take(pixels.numpy(), indices.numpy(), axis=0, out=out.numpy(), mode="clip")  # other modes copy twice
    return out


def read_stamps(table: ImageList) -> list[str]:
    """A short text per row that changes with the file: size and CRC in an archive, size and time in a folder.

    It is "missing" for a missing file, which decoding will report. Cut-outs have two files, and two texts joined.
    """
    stamps = _stamp_files(table.root, table.rows["path"])
    if not isinstance(table, PlacedList):
        return stamps
    below = _stamp_files(table.backgrounds, table.rows["background"])
    return [f"{own} over {other}" for own, other in zip(stamps, below, strict=True)]


def _stamp_files(root: Path, paths: Iterable[str]) -> list[str]:
    if root.is_dir():
        return [_stamp_file(root / path) for path in paths]
    with zipfile.ZipFile(root) as archive:
        members = {info.filename: f"{info.file_size}/{info.CRC:08x}" for info in archive.infolist()}
    return [members.get(path, "missing") for path in paths]


def _stamp_file(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "missing"
    return f"{status.st_size}@{status.st_mtime_ns}"


def _describe(
    rows: pd.DataFrame, classes: list[str] | tuple[str, ...], domains: list[str] | tuple[str, ...]
) -> dict[str, tuple[str, str, str]]:
    columns = zip(rows["id"], rows["stamp"], rows["label"], rows["domain"], strict=True)
    return {key: (stamp, classes[label], domains[domain]) for key, stamp, label, domain in columns}


def _read_header(path: Path) -> Header:
    if not (path / HEADER).exists():
        raise UserError(f"no pixel store at {path}: create it with `stablenet data prepare`")
    try:
        values = read_object(path / HEADER)
    except UserError as error:
        raise _damaged(path, str(error)) from error
    if values.get("format") != FORMAT:
        raise _damaged(path, f"it has format {values.get('format')}, but this version reads {FORMAT}")
    missing = sorted({field.name for field in fields(Header)} ^ values.keys())
    if missing:
        raise _damaged(path, f"{HEADER} has missing or unknown fields: {', '.join(missing)}")
    try:
        header = read_fields(Header, values)
    except UserError as error:
        raise _damaged(path, f"in {HEADER}, {error}") from error
    if any(not entry.keys() >= _LEFT_OUT for entry in header.left_out):
        raise _damaged(path, f"in {HEADER}, an image that was left out lacks one of {', '.join(sorted(_LEFT_OUT))}")
    return header


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(f"the store {path} cannot be used: {reason}; delete it and run `stablenet data prepare`")


def check_store(store: PixelStore, table: ImageList | None = None) -> list[Finding]:
    """Check every image against its checksum; with the source's image list also that no file has changed."""
    header = store.header
    size = f"{header.count:,} images of {header.height} × {header.width}"
    findings = [_try(store.verify, "every image matches its checksum", size)]
    if table is not None:
        detail = f"{len(table.rows):,} images, {len(header.left_out)} of them left out"
        findings.append(_try(lambda: store.check_source(table), "the source is unchanged", detail))
    return findings


def _try(check: Callable[[], None], name: str, detail: str) -> Finding:
    try:
        check()
    except UserError as error:
        return Finding(name, False, str(error))
    return Finding(name, True, detail)
