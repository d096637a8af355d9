"""A data set of Hugging Face's `datasets`, as `save_to_disk` writes it or as Parquet files with embedded images.

Its images are extracted once, next to other prepared data, with a list of paths, labels and parts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from stablenet.data.cache import PICTURES, name_cache
from stablenet.data.columns import LABEL, PART, PATH, USUAL, Columns, find_part
from stablenet.errors import UserError
from stablenet.files import build_folder, lock, read_object, resolve, write_bytes
from stablenet.frames import write_csv

if TYPE_CHECKING:
    import pyarrow

DICT, INFO = "dataset_dict.json", "dataset_info.json"
LIST = "list.csv"
_ENDINGS = {b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg", b"RIFF": ".webp", b"GIF8": ".gif"}


@dataclass(frozen=True)
class Shard:
    """part: train, validation or test, "" where the data set names none."""

    file: Path
    part: str


def find_shards(folder: Path) -> list[Shard]:
    """The files with the rows of a data set, in order; none where the folder is something else."""
    if (folder / DICT).is_file():
        names = [str(name) for name in read_object(folder / DICT).get("splits", ())]
        return [Shard(file, name) for name in names for file in sorted((folder / name).glob("*.arrow"))]
    if (folder / INFO).is_file() and any(folder.glob("*.arrow")):
        return [Shard(file, "") for file in sorted(folder.glob("*.arrow"))]
    files = sorted({*folder.glob("*.parquet"), *folder.glob("data/*.parquet")})
    return [Shard(file, file.stem.split("-")[0]) for file in files if _has_pictures(file)]


def unpack_shards(folder: Path, shards: list[Shard], cache: Path, columns: Columns) -> Path:
    """Write the pictures out, if that was not done before; returns the image list."""
    stamp = [(str(shard.file.absolute()), shard.file.stat().st_size, shard.file.stat().st_mtime_ns) for shard in shards]
    key = hashlib.sha256(json.dumps([stamp, columns.label]).encode()).hexdigest()[:12]
    place = cache / f"{PICTURES}{resolve(folder).name}-{key}"
    with lock(place):
        if not (place / LIST).is_file():
            name_cache(place)
            with build_folder(place) as partial:
                rows = pd.DataFrame(list(_write_pictures(folder, shards, partial, columns)))
                write_csv(rows, partial / LIST)
    return place / LIST


def _write_pictures(folder: Path, shards: list[Shard], place: Path, columns: Columns) -> Iterator[dict[str, object]]:
    """The rows of the list. Every column of plain values is kept; a class number becomes its name."""
    parts = [find_part(shard.part) for shard in shards]
    named = all(part is not None for part in parts)
    number = 0
    for shard, part in zip(shards, parts, strict=True):
        table, names = _read_shard(shard.file), _class_names(shard.file)
        picture = _picture_column(table.schema)
        label = columns.label or next((name for name in USUAL[LABEL] if name in table.column_names), "")
        if picture is None or not label:
            raise UserError(
                f"{folder} is a data set of the columns {', '.join(table.column_names)}: expected pictures (bytes) and "
                f"a label, one of {', '.join(USUAL[LABEL])}; name the latter"
            )
        kept = [name for name in table.column_names if name != picture]
        for row in table.to_pylist():
            content = row[picture].get("bytes") if isinstance(row[picture], Mapping) else None
            if not content:
                raise UserError(f"row {number} of {shard.file} holds no picture: only a path, or nothing")
            file = f"pictures/{number:08d}{_ending(content)}"
            (place / "pictures").mkdir(exist_ok=True)
            write_bytes(place / file, content, sync=False)
            values = {name: names.get(name, {}).get(row[name], row[name]) for name in kept}
            values = {name: value for name, value in values.items() if isinstance(value, str | int | float | bool)}
            yield {PATH: file, **values, **({PART: part} if named else {})}
            number += 1


def _read_shard(file: Path) -> pyarrow.Table:
    """Arrow files are streams, as `datasets` writes them, or have a footer."""
    import pyarrow
    from pyarrow import ipc, parquet

    try:
        if file.suffix == ".parquet":
            return parquet.read_table(file)
        with pyarrow.OSFile(str(file)) as opened:
            try:
                return ipc.open_stream(opened).read_all()
            except pyarrow.ArrowInvalid:
                return ipc.open_file(str(file)).read_all()
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{file} cannot be read as a data set: {' '.join(str(error).split())[:200]}") from error


def _class_names(file: Path) -> dict[str, dict[int, str]]:
    """Column -> number -> name, as `datasets` keeps them in the file's own description, or beside it."""
    described: Mapping[str, Any] = {}
    if (file.parent / INFO).is_file():
        described = read_object(file.parent / INFO).get("features") or {}
    else:
        kept = (_read_shard(file).schema.metadata or {}).get(b"huggingface")
        described = json.loads(kept).get("info", {}).get("features", {}) if kept else {}
    return {
        name: dict(enumerate(map(str, feature["names"])))
        for name, feature in described.items()
        if isinstance(feature, Mapping) and feature.get("_type") == "ClassLabel" and feature.get("names")
    }


def _picture_column(schema: pyarrow.Schema) -> str | None:
    """The first column of structs with a field `bytes`."""
    import pyarrow

    for column in schema:
        if pyarrow.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
            return str(column.name)
    return None


def _has_pictures(file: Path) -> bool:
    from pyarrow import ArrowException, parquet

    try:
        return _picture_column(parquet.read_schema(file)) is not None
    except (ArrowException, OSError):
        return False


def _ending(content: bytes) -> str:
    return next((ending for begin, ending in _ENDINGS.items() if content.startswith(begin)), ".png")
