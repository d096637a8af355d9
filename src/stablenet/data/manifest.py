"""A split as a small text file: which image belongs to which part, how the split was made, and a hash.

PARTS
    train       images a model is trained on
    validation  held out of the training domains, for model selection
    test        the target: the images on which the published accuracies are computed
    test_rest   the rest of the target domain; test and test_rest together are the whole target domain
Only train and validation may be read before the final evaluation.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from stablenet.errors import UserError
from stablenet.files import read_text, write_bytes
from stablenet.registry import OLD_SPLIT, SPLIT, hash_data, old_field, rename_data, unknown_name

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

PARTS = ("train", "validation", "test", "test_rest")
SOURCE_PARTS = ("train", "validation")
TARGET_PARTS = ("test", "test_rest")
_FORMAT = 1
_COLUMNS = ("id", "label", "domain", "part")
_CROP_COLUMNS = ("u", "v")
_CUTOUT_COLUMNS = (*_CROP_COLUMNS, "scale", "foreground", "background")
_TEXT = ("id", "part", "foreground", "background")


@old_field(OLD_SPLIT, SPLIT)
@dataclass(frozen=True)
class Manifest:
    """A split. The same inputs give the same hash on every machine.

    rows: columns id (str), label (int, into classes), domain (int, into domains), part (one of PARTS), sorted by part,
    then id; composed sets also have u, v (int, 0..65535), the position of the background crop; those of cut-outs have
    u, v and scale (see `stablenet.data.compose.Placement`) and the ids of foreground and background (str).
    notes: what readers of results need to know, for example a class with fewer images than published.
    """

    source: str
    split: str
    parameters: dict[str, JSON]
    seed: int
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    rows: pd.DataFrame
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        columns = [*_COLUMNS, *(c for c in _CUTOUT_COLUMNS if c in self.rows)]
        unknown = sorted(set(self.rows["part"]) - set(PARTS))
        if unknown:
            raise UserError(unknown_name("part", unknown[0], PARTS))
        integers = {column: "int64" for column in columns if column not in _TEXT}
        rows = self.rows[columns].astype(integers)
        rows = rows.assign(order=rows["part"].map(PARTS.index))
        rows = rows.sort_values(["order", *(c for c in columns if c != "part")], ignore_index=True)
        object.__setattr__(self, "rows", rows[columns])

    @property
    def composed(self) -> bool:
        """Whether the rows are digits or cut-outs to be composed with backgrounds, rather than images."""
        return "u" in self.rows

    @property
    def has_cutouts(self) -> bool:
        """Whether the rows are cut-outs over backgrounds."""
        return "foreground" in self.rows

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the header as sorted JSON and the rows; notes are not included."""
        return hashlib.sha256(_dump(hash_data(self._header())).encode() + self._body()).hexdigest()

    def part(self, name: str) -> pd.DataFrame:
        """The rows of one part, numbered 0..n-1; these numbers are the `index` of a batch."""
        if name not in PARTS:
            raise UserError(unknown_name("part", name, PARTS))
        return self.rows[self.rows["part"] == name].reset_index(drop=True)

    def domains_of(self, part: str) -> tuple[int, ...]:
        """The domains that occur in one part, in ascending order."""
        return tuple(sorted(self.part(part)["domain"].unique().tolist()))

    def counts(self, part: str) -> pd.DataFrame:
        """Number of images of one part per domain (rows) and class (columns), including zeros."""
        rows = self.part(part)
        table = pd.crosstab(rows["domain"], rows["label"])
        table = table.reindex(index=range(len(self.domains)), columns=range(len(self.classes)), fill_value=0)
        return table.set_axis(self.domains, axis=0).set_axis(self.classes, axis=1)

    def describe(self) -> str:
        """The split, its parts and the notes in one line."""
        sizes = self.rows["part"].value_counts(sort=False)
        return "; ".join([f"split {self.split}: " + ", ".join(f"{p} {n:,}" for p, n in sizes.items()), *self.notes])

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        header = self._header() | {"notes": list(self.notes), "hash": self.hash}
        text = _dump(header).encode() + b"\n" + self._body()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, text)
        except OSError as error:
            raise UserError(f"cannot write the manifest {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """Read a manifest and verify its hash."""
        header, body = _read(path)
        header = rename_data({"data": header})["data"]
        rows = _parse_rows(path, body)
        try:
            manifest = cls(
                source=header["source"],
                split=header[SPLIT],
                parameters=header["parameters"],
                seed=header["seed"],
                classes=tuple(header["classes"]),
                domains=tuple(header["domains"]),
                rows=rows,
                notes=tuple(header["notes"]),
            )
        except KeyError as error:
            raise UserError(f"{path} is not a manifest: it lacks {error}") from error
        if manifest.hash != header.get("hash"):
            raise UserError(
                f"the manifest {path} was changed after it was written (its hash does not match its rows): "
                "create it again with `stablenet data split`"
            )
        return manifest

    def _header(self) -> dict[str, JSON]:
        return {
            "format": _FORMAT,
            "source": self.source,
            SPLIT: self.split,
            "parameters": self.parameters,
            "seed": self.seed,
            "classes": list(self.classes),
            "domains": list(self.domains),
        }

    def _body(self) -> bytes:
        lines = ["\t".join(self.rows.columns)]
        lines += ["\t".join(map(str, row)) for row in self.rows.itertuples(index=False, name=None)]
        if any(line.count("\t") != len(self.rows.columns) - 1 or "\n" in line or "\r" in line for line in lines):
            raise UserError("an image id contains a tab or a line break: rename the file before splitting")
        return ("\n".join(lines) + "\n").encode()


def _dump(value: JSON) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _read(path: Path) -> tuple[dict[str, Any], str]:
    """Header and body of a manifest file."""
    first, _, body = read_text(path).partition("\n")
    try:
        header = json.loads(first)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a manifest: its first line is not JSON") from error
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise UserError(f"{path} is not a manifest of format {_FORMAT}, the one this version reads")
    return header, body


def _parse_rows(path: Path, body: str) -> pd.DataFrame:
    first, *lines = body.removesuffix("\n").split("\n")
    columns = first.split("\t")
    if columns not in ([*_COLUMNS], [*_COLUMNS, *_CROP_COLUMNS], [*_COLUMNS, *_CUTOUT_COLUMNS]):
        raise UserError(f"{path} is not a manifest: its columns are {columns}, expected {[*_COLUMNS]}")
    cells = [line.split("\t") for line in lines]
    broken = [number for number, row in enumerate(cells, 3) if len(row) != len(columns)]
    if broken:
        raise UserError(
            f"line {broken[0]} of the manifest {path} has {len(cells[broken[0] - 3])} cells, expected {len(columns)}"
        )
    rows = pd.DataFrame(cells, columns=columns)
    try:
        return rows.astype({column: "int64" for column in columns if column not in _TEXT})
    except ValueError as error:
        raise UserError(f"{path} is not a manifest: a label, domain or position is not a whole number") from error
