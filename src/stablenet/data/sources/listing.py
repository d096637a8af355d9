"""Users' own images in an image list: a CSV, TSV or Parquet file with a row per image."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd

from stablenet.data.columns import CONTEXT, LABEL, NO_PART, PART, PATH, SPELLINGS, USUAL, Columns, find_part
from stablenet.data.image_list import ImageList, make_image_table
from stablenet.data.sources.folder import some
from stablenet.errors import UserError
from stablenet.frames import SUFFIXES, read_frame
from stablenet.registry import unknown_name

NO_CONTEXT = "all"  # the one domain of images without contexts
_SHOWN = 20  # files in a message


def read_list(file: Path, columns: Columns, root: Path | None = None) -> ImageList:
    """The images of a list; names of labels and contexts are text, sorted.

    root: where relative paths begin, if they do not begin in the list's folder.
    """
    rows = _read_rows(file)
    names = _find_columns(rows, columns)
    rows = pd.DataFrame({kind: rows[name] for kind, name in names.items()})
    _refuse_gaps(rows, file)
    rows = rows.astype(str)
    rows, notes = _read_parts(rows, names, columns)
    base, paths = _locate(rows[PATH].tolist(), file, root)
    _refuse_missing(base, paths, file)
    classes, contexts = _sort_names(rows[LABEL]), _sort_names(rows.get(CONTEXT, pd.Series([NO_CONTEXT])))
    records: list[dict[str, object]] = [
        {"id": path, "path": path, "label": classes.index(row[LABEL])}
        | {"domain": contexts.index(row.get(CONTEXT, NO_CONTEXT))}
        | ({PART: row[PART]} if PART in row else {})
        for path, row in zip(paths, rows.to_dict("records"), strict=True)
    ]
    table = make_image_table("table", base, classes, contexts, records, notes)
    return replace(table, title=file.stem, listed=True)


def has_paths(file: Path) -> bool:
    """Whether a CSV file is an image list: whether one of its columns is usually that of the paths."""
    with file.open(encoding="utf-8", errors="replace") as opened:  # whoever reads it whole says what is wrong
        names = [name.strip().strip('"').lower() for name in opened.readline().rstrip("\r\n").split(",")]
    return any(name in names for name in USUAL[PATH])


def _read_rows(file: Path) -> pd.DataFrame:
    if not file.is_file() or file.suffix.lower() not in SUFFIXES:
        raise UserError(f"{file} is not an image list: expected a .csv, .tsv or .parquet file")
    rows = read_frame(file, as_text=True)
    if rows.empty:
        raise UserError(f"{file} has no rows: expected one per image, with {PATH} and {LABEL}")
    return rows.rename(columns=str)


def _find_columns(rows: pd.DataFrame, columns: Columns) -> dict[str, str]:
    """Kind -> column, of those that are there."""
    known = {name.lower(): name for name in rows.columns}
    found = {}
    for kind, name in asdict(columns).items():
        usual = [known[other] for other in USUAL[kind] if other in known]
        if name and not (kind == PART and name == NO_PART):
            if name not in rows:
                raise UserError(unknown_name("column", name, rows.columns))
            found[kind] = name
        elif usual and not name:
            found[kind] = usual[0]
        elif kind in (PATH, LABEL):
            expected = " or ".join(USUAL[kind])
            raise UserError(
                f"the list has no column {expected}: it has {', '.join(rows.columns)}; name the one with the {kind}"
            )
    return found


def _refuse_gaps(rows: pd.DataFrame, file: Path) -> None:
    empty = rows.isna() | (rows.astype(str) == "")
    gaps = rows.index[empty.any(axis=1)]
    if len(gaps):
        kinds = list(rows.columns)
        lacking = f"{', '.join(kinds[:-1])} or {kinds[-1]}"
        raise UserError(f"{file}: {len(gaps)} of {len(rows)} rows lack a {lacking}, first in row {gaps[0] + 1}")


def _read_parts(rows: pd.DataFrame, names: dict[str, str], columns: Columns) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The rows with the parts by their own names. A column that was not named and holds something else is none."""
    if PART not in names:
        return rows, ()
    parts = rows[PART].map(find_part)
    if parts.notna().all():
        return rows.assign(**{PART: parts}), ()
    strange = rows.loc[parts.isna(), PART].iloc[0]
    told = f"{strange!r} in the column {names[PART]} is no part of a split ({SPELLINGS})"
    if columns.part:
        raise UserError(told)
    return rows.drop(columns=PART), (f"{told}: the column is not read",)


def _locate(names: Sequence[str], file: Path, root: Path | None) -> tuple[Path, list[str]]:
    """(folder, paths below it): relative names begin at root if any image is there, else in the list's folder.

    Where names are absolute or lead out of that folder, the folder is the deepest one that contains all images.
    """
    base = file.parent
    if root is not None and root.is_dir() and any((root / name).is_file() for name in names):
        base = root
    paths = [os.path.normpath(name) for name in names]
    if any(os.path.isabs(path) or path.startswith(os.pardir) for path in paths):
        whole = [os.path.abspath(base / path) for path in paths]
        shared = Path(os.path.commonpath([os.path.dirname(path) for path in whole]))
        base = base if shared.is_relative_to(base.absolute()) else shared
        paths = [os.path.relpath(path, base) for path in whole]
    return base, [Path(path).as_posix() for path in paths]


def _refuse_missing(base: Path, paths: Sequence[str], file: Path) -> None:
    """Missing and empty files are named before the first image is decoded."""
    missing = [path for path in paths if not (base / path).is_file()]
    if missing:
        place = base.absolute()
        raise UserError(
            f"{len(missing)} files listed in {file} do not exist: {some(missing, _SHOWN)}; sought in {place}"
        )
    empty = [path for path in paths if not (base / path).stat().st_size]
    if empty:
        raise UserError(f"{len(empty)} files listed in {file} are empty: {some(empty, _SHOWN)}")


def _sort_names(values: pd.Series[str]) -> list[str]:
    """Distinct names, sorted, whole numbers by their value."""
    names = {str(value) for value in values}
    return sorted(names, key=lambda name: (0, int(name), "") if name.isdecimal() else (1, 0, name))
