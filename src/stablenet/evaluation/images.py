"""What a user points at, files, folders or tables, as one table of image paths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from stablenet.data.sources.tree import IMAGE_SUFFIXES
from stablenet.errors import UserError

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")
PATH = "path"


def gather_images(inputs: Sequence[Path]) -> pd.DataFrame:
    """One row per image, in the order given: its path as the user would write it, and a table's other columns.

    A folder gives all images below it, sorted; a table's relative paths start at the table's folder.
    """
    frames = [_gather(place) for place in inputs]
    if not frames:
        raise UserError("no images were named: give files, folders or a CSV with a column 'path'")
    gathered = pd.concat(frames, ignore_index=True)
    missing = [path for path in gathered[PATH] if not Path(path).is_file()]
    if missing:
        raise UserError(f"{len(missing)} of {len(gathered)} images are not there, for example {missing[0]}")
    return gathered


def _gather(place: Path) -> pd.DataFrame:
    if place.is_dir():
        return _gather_folder(place)
    if not place.exists():
        raise UserError(f"{place} does not exist: give image files, folders or a CSV with a column 'path'")
    if place.suffix.lower() in TABLE_SUFFIXES:
        return _gather_table(place)
    if place.suffix.lower() in IMAGE_SUFFIXES:
        return pd.DataFrame({PATH: [str(place)]})
    known = ", ".join(IMAGE_SUFFIXES + TABLE_SUFFIXES)
    raise UserError(f"{place} is neither an image nor a table by its ending; known are {known}")


def _gather_folder(folder: Path) -> pd.DataFrame:
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file())
    if not found:
        raise UserError(f"the folder {folder} holds no images ({', '.join(IMAGE_SUFFIXES)})")
    return pd.DataFrame({PATH: [str(path) for path in found]})


def _gather_table(path: Path) -> pd.DataFrame:
    try:
        if path.suffix.lower() == ".parquet":
            rows = pd.read_parquet(path)
        else:
            separator = "\t" if path.suffix.lower() == ".tsv" else ","
            rows = pd.read_csv(path, sep=separator, dtype=str, keep_default_na=False)
    except (ValueError, OSError) as error:
        raise UserError(f"{path} cannot be read as a table: {error}") from error
    if PATH not in rows:
        raise UserError(f"{path} has no column 'path': it has {', '.join(map(str, rows.columns))}")
    if rows.empty:
        raise UserError(f"{path} has no rows: nothing to predict")
    return rows.assign(**{PATH: [str(path.parent / name) for name in rows[PATH].astype(str)]})
