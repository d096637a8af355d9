"""The pixel store: images decoded once, memory-mapped from then on.

A store is a folder of three files: `pixels.bin` (uint8, N × H × W × 3), `images.parquet` (one row per image) and
`store.json` (everything else). `stablenet.data.cache` writes them and renames the folder into place when all
three are whole and on disk; opening proves that they belong together.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from stablenet.data.table import ImageTable
from stablenet.errors import UserError

FORMAT = 1
PIXELS, IMAGES, HEADER = "pixels.bin", "images.parquet", "store.json"


@dataclass(frozen=True, kw_only=True)
class Header:
    """What `store.json` holds.

    size: the side asked for; None when the images kept their own size.
    left_out: images that could not be decoded, each {id, stamp, class, domain, reason}.
    duplicates: groups of ids with the same content in more than one domain or class.
    images_sha256: of `images.parquet`, whose rows carry a CRC-32 of their pixels.
    """

    format: int
    source: str
    classes: list[str]
    domains: list[str]
    size: int | None
    height: int
    width: int
    count: int
    images_sha256: str
    left_out: list[dict[str, str]]
    duplicates: list[list[str]]


@dataclass(frozen=True)
class Changes:
    """What is different in a source since its store was made: ids added, gone, and changed in bytes or label."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def __str__(self) -> str:
        parts = ((self.added, "added"), (self.removed, "removed"), (self.changed, "changed"))
        return ", ".join(f"{len(ids)} {word} (for example {ids[0]})" for ids, word in parts if ids)


class PixelStore:
    """Decoded images on disk, read by row number.

    rows: columns id, label, domain, stamp (size and time, or CRC, of the source file), content (SHA-256 of the
    source file) and crc (CRC-32 of the pixels); row k describes pixels[k].
    """

    def __init__(self, path: Path, header: Header, rows: pd.DataFrame) -> None:
        self.path = path
        self.header = header
        self.rows = rows

    @classmethod
    def open(cls, path: Path) -> PixelStore:
        """Open a whole store; a missing, half or foreign one is an error."""
        header = _read_header(path)
        try:
            table = (path / IMAGES).read_bytes()
            found = (path / PIXELS).stat().st_size
        except OSError as error:
            raise _damaged(path, f"{error.filename} cannot be read: {error.strerror}") from error
        if hashlib.sha256(table).hexdigest() != header.images_sha256:
            raise _damaged(path, f"the checksum of {IMAGES} does not fit")
        expected = header.count * header.height * header.width * 3
        if found != expected:
            raise _damaged(path, f"{PIXELS} has {found} bytes where {expected} belong")
        return cls(path, header, pd.read_parquet(path / IMAGES))

    def __len__(self) -> int:
        return self.header.count

    @property
    def ids(self) -> list[str]:
        return self.rows["id"].tolist()

    @cached_property
    def pixels(self) -> Tensor:
        """All images, (N, H, W, 3) uint8; nothing is read from disk before it is touched."""
        shape = (self.header.count, self.header.height, self.header.width, 3)
        # Copy-on-write: torch wants writable memory, and the file must never change.
        return torch.from_numpy(np.memmap(self.path / PIXELS, np.uint8, mode="c", shape=shape))

    def read(self, indices: Tensor, out: Tensor | None = None) -> Tensor:
        """Images (b, H, W, 3) uint8 at the row numbers (b,) int64, into `out` if given."""
        return take_rows(self.pixels, indices, out)

    def verify(self) -> None:
        """Compare every image with its checksum; damaged ones are an error that lists them all."""
        pixels = self.pixels.numpy()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            found = list(pool.map(zlib.crc32, pixels))
        bad = self.rows["id"][np.asarray(found, np.int64) != self.rows["crc"].to_numpy()]
        if len(bad):
            raise _damaged(self.path, f"{len(bad)} images do not fit their checksums: {', '.join(bad)}")

    def compare(self, table: ImageTable) -> Changes:
        """What changed in the source since the store was made, by file stamps, labels and domains."""
        old = _describe(self.rows, self.header.classes, self.header.domains)
        old |= {e["id"]: (e["stamp"], e["class"], e["domain"]) for e in self.header.left_out}
        new = _describe(table.rows.assign(stamp=read_stamps(table)), table.classes, table.domains)
        return Changes(
            added=tuple(sorted(new.keys() - old.keys())),
            removed=tuple(sorted(old.keys() - new.keys())),
            changed=tuple(sorted(key for key in old.keys() & new.keys() if old[key] != new[key])),
        )

    def check_source(self, table: ImageTable) -> None:
        """Raise when the source is no longer what was decoded."""
        changes = self.compare(table)
        if changes:
            raise UserError(
                f"the source of the store {self.path} has changed since it was made: {changes}; "
                "run `stablenet data prepare` again"
            )


def take_rows(pixels: Tensor, indices: Tensor, out: Tensor | None = None) -> Tensor:
    """pixels[indices] along the first axis, into `out` if given.

    NumPy copies in this thread alone. torch would divide so small a task among all cores, and where these are
    busy its threads wait for each other longer than the copy takes.
    """
    if len(indices) and not 0 <= indices.min() <= indices.max() < len(pixels):
        raise IndexError(f"rows must lie in 0..{len(pixels) - 1}")
    if out is None:
        out = torch.empty((len(indices), *pixels.shape[1:]), dtype=pixels.dtype)
    np.take(pixels.numpy(), indices.numpy(), axis=0, out=out.numpy(), mode="clip")  # other modes copy twice
    return out


def read_stamps(table: ImageTable) -> list[str]:
    """A short text per row that changes with the file: size and CRC in an archive, size and time in a folder.

    A missing file gets "missing": decoding reports it with all others.
    """
    if table.root.is_dir():
        return [_stamp_file(table.root / path) for path in table.rows["path"]]
    with zipfile.ZipFile(table.root) as archive:
        members = {info.filename: f"{info.file_size}/{info.CRC:08x}" for info in archive.infolist()}
    return [members.get(path, "missing") for path in table.rows["path"]]


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
    try:
        text = (path / HEADER).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"there is no pixel store at {path}: make it with `stablenet data prepare`") from error
    try:
        values: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise _damaged(path, f"{HEADER} is not JSON") from error
    if values.get("format") != FORMAT:
        raise _damaged(path, f"it has format {values.get('format')} where this version reads {FORMAT}")
    missing = sorted({field.name for field in fields(Header)} ^ values.keys())
    if missing:
        raise _damaged(path, f"{HEADER} lacks or should not have {', '.join(missing)}")
    return Header(**values)


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(f"the store {path} cannot be used: {reason}; remove it and run `stablenet data prepare`")
