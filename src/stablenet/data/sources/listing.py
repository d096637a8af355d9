"""Any CSV or Parquet table with the columns path, label and domain."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pandas as pd

from stablenet.data.sources.base import Source
from stablenet.data.table import ImageTable, make_image_table
from stablenet.errors import UserError

COLUMNS = ("path", "label", "domain")


def read(root: Path) -> ImageTable:
    """Paths are relative to the table's folder; the names of labels and domains are taken as text, sorted."""
    rows = _read_rows(root)
    _refuse_gaps(rows, root)
    rows = rows[list(COLUMNS)].astype(str)
    _refuse_bad_paths(rows["path"], root)
    classes = _sort_names(rows["label"])
    domains = _sort_names(rows["domain"])
    records: list[dict[str, object]] = [
        {"id": path, "path": path, "label": classes.index(label), "domain": domains.index(domain)}
        for path, label, domain in rows.itertuples(index=False, name=None)
    ]
    return make_image_table("table", root.parent, classes, domains, records)


def _read_rows(path: Path) -> pd.DataFrame:
    readers = {".csv": pd.read_csv, ".tsv": pd.read_csv, ".parquet": pd.read_parquet}
    if not path.is_file() or path.suffix not in readers:
        raise UserError(f"{path} is no table: expected a file that ends in .csv, .tsv or .parquet")
    try:
        if path.suffix == ".parquet":
            rows = pd.read_parquet(path)
        else:
            rows = pd.read_csv(path, sep="\t" if path.suffix == ".tsv" else ",", dtype=str, keep_default_na=False)
    except (ValueError, OSError) as error:
        raise UserError(f"{path} cannot be read as a table: {error}") from error
    missing = [column for column in COLUMNS if column not in rows]
    if missing:
        raise UserError(f"{path} lacks the columns {missing}: it has {list(rows.columns)}")
    return rows


def _refuse_gaps(rows: pd.DataFrame, place: Path) -> None:
    empty = rows[list(COLUMNS)].isna() | (rows[list(COLUMNS)].astype(str) == "")
    gaps = rows.index[empty.any(axis=1)]
    if rows.empty:
        raise UserError(f"{place} has no rows: expected one per image, with {', '.join(COLUMNS)}")
    if len(gaps):
        first = f"first in row {gaps[0] + 1}"
        raise UserError(f"{place}: {len(gaps)} of {len(rows)} rows lack a path, label or domain, {first}")


def _refuse_bad_paths(paths: pd.Series[str], place: Path) -> None:
    """A path that leaves the folder would make ids differ between machines; missing files are all named."""
    outside = [p for p in paths if PurePosixPath(p).is_absolute() or ".." in PurePosixPath(p).parts]
    if outside:
        raise UserError(f"{place} names {outside[0]!r}: give paths relative to the table's folder, below it")
    missing = [path for path in paths if not (place.parent / path).is_file()]
    if missing:
        shown = ", ".join(missing[:20]) + (f" and {len(missing) - 20} more" if len(missing) > 20 else "")
        raise UserError(f"{len(missing)} files named in {place} do not exist: {shown}")


def _sort_names(values: pd.Series[str]) -> list[str]:
    """Distinct names, whole numbers in the order of their value."""
    names = {str(value) for value in values}
    return sorted(names, key=lambda name: (0, int(name), "") if name.isdecimal() else (1, 0, name))


SOURCE = Source(
    name="table",
    title="Your own images, listed in a CSV or Parquet table",
    origin="yours",
    licence="yours",
    layouts=("a .csv, .tsv or .parquet file with the columns path, label, domain",),
    read=read,
)
