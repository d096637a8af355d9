"""Users' own images, from folders, an archive or an image list. All commands read them here."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd

from stablenet.data.cache import cache_folder
from stablenet.data.columns import CONTEXT, LABEL, NO_PART, PART, PATH, SPELLINGS, USUAL, Columns, find_part
from stablenet.data.image_list import ImageList, make_image_list
from stablenet.data.sources.folder import Tree, find_tree, refuse_empty, some, sorted_names
from stablenet.data.sources.shards import find_shards, unpack_shards
from stablenet.data.sources.source import ReadOwn, Source
from stablenet.errors import UserError, write_count
from stablenet.files import resolve
from stablenet.frames import SUFFIXES, read_frame
from stablenet.registry import IMAGE_LIST, unknown_name

NO_CONTEXT = "all"  # the one domain of images without contexts
_SHOWN = 5  # files in a message
_LONGEST_HEADER = 1 << 20  # characters


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
    base, paths = locate_images(rows[PATH].tolist(), file, root)
    _refuse_missing(base, paths, file)
    classes, contexts = _sort_names(rows[LABEL]), _sort_names(rows.get(CONTEXT, pd.Series([NO_CONTEXT])))
    records: list[dict[str, object]] = [
        {"id": path, "path": path, "label": classes.index(row[LABEL])}
        | {"domain": contexts.index(row.get(CONTEXT, NO_CONTEXT))}
        | ({PART: row[PART]} if PART in row else {})
        for path, row in zip(paths, rows.to_dict("records"), strict=True)
    ]
    table = make_image_list(IMAGE_LIST, base, classes, contexts, records, notes)
    return replace(table, title=file.stem, listed=True)


def has_paths(file: Path) -> bool:
    """Whether a CSV file is an image list: whether one of its columns is usually that of the paths."""
    with file.open(encoding="utf-8", errors="replace") as opened:  # reading all of it will report what is wrong
        names = [name.strip().strip('"').lower() for name in opened.readline(_LONGEST_HEADER).rstrip("\r\n").split(",")]
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
    message = f"{strange!r} in the column {names[PART]} is not a part of a split ({SPELLINGS})"
    if columns.part:
        raise UserError(message)
    return rows.drop(columns=PART), (f"{message}: the column is not read",)


def locate_images(names: Sequence[str], file: Path, root: Path | None) -> tuple[Path, list[str]]:
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
        raise UserError(
            f"{write_count(len(missing), 'file')} listed in {file} not found: {some(missing, _SHOWN)}; "
            f"sought in {base.absolute()} (--root names another folder)"
        )
    empty = [path for path in paths if not (base / path).stat().st_size]
    if empty:
        raise UserError(f"empty files listed in {file}: {some(empty, _SHOWN)}")


def _sort_names(values: pd.Series[str]) -> list[str]:
    """Distinct names, sorted, whole numbers by their value."""
    names = {str(value) for value in values}
    return sorted(names, key=lambda name: (0, int(name), "") if name.isdecimal() else (1, 0, name))


_LEVELS = ("domain", "class", "image")  # in folders; images without contexts have no domain
LAYOUT = "/".join(_LEVELS)


def open_own(
    place: Path, *, path: str = "", label: str = "", context: str = "", part: str = "", root: Path | None = None
) -> ImageList:
    """The user's images at a place: a folder or zip archive of class/image or domain/class/image, below train/,
    validation/ and test/ if a split is given; or an image list, .csv, .tsv or .parquet.

    path, label, context, part: names of a list's columns, see `Columns`.   root: where a list's relative paths begin,
    if they do not begin in its folder.
    A folder may also be a data set of Hugging Face's `datasets`, see `shards`.
    The list says what was found: its `contexts`, `given_parts`, and in words `describe`; its `name` is that of the
    source that reads the same, "folder" or "image-list".
    """
    if not place.exists():
        raise UserError(f"{place} does not exist: give a folder of images, a CSV file or the name of a source")
    columns = Columns(path=path, label=label, context=context, part=part)
    listing = settle(place, columns)
    if listing != place:
        return replace(read_list(listing, columns), title=resolve(place).name)
    if place.is_dir() or place.suffix.lower() == ".zip":
        return read_folder(place, columns)
    return read_list(place, columns, root)


def settle(place: Path, columns: Columns) -> Path:
    """Where the images are read from: the place itself, or the list of images extracted from a data set."""
    shards = find_shards(place) if place.is_dir() else []
    return unpack_shards(place, shards, cache_folder(), columns) if shards else place


def read_folder(root: Path, columns: Columns | None = None) -> ImageList:
    """Read a tree; contexts and classes are the names of folders, sorted. A context may lack a class."""
    columns = columns or Columns()
    _refuse_columns(root, columns)
    if root.is_dir() and not any(root.iterdir()):
        raise UserError(f"{root} is empty: expected class/image or {LAYOUT}")
    tree = find_tree(root, "folder", lambda _, names: bool(names), LAYOUT)
    if not tree.images:
        raise UserError(f"{root} holds no images: expected class/image or {LAYOUT}")
    tree, levels = _find_levels(tree, root)
    refuse_empty(_empty_classes(tree, len(levels)), root)
    places = [dict(zip(levels, file.split("/"), strict=True)) for file in tree.images]
    classes = sorted_names("class", (place["class"] for place in places), root)
    contexts = sorted_names("domain", (place.get("domain", NO_CONTEXT) for place in places), root)
    parted = PART in levels and columns.part != NO_PART
    records: list[dict[str, object]] = [
        {"id": file, "path": tree.prefix + file, "label": classes.index(place["class"])}
        | {"domain": contexts.index(place.get("domain", NO_CONTEXT))}
        | ({PART: find_part(place[PART])} if parted else {})
        for file, place in zip(tree.images, places, strict=True)
    ]
    whole = resolve(root)
    title = whole.stem if whole.is_file() else whole.name
    return replace(make_image_list("folder", tree.root, classes, contexts, records), title=title)


def _refuse_columns(root: Path, columns: Columns) -> None:
    named = [kind for kind in (PATH, LABEL, CONTEXT, PART) if getattr(columns, kind)]
    if columns.part == NO_PART:
        named.remove(PART)
    if named:
        raise UserError(
            f"{root} is not an image list: the names of folders are its classes and contexts; leave {named[0]} out"
        )


def _find_levels(tree: Tree, root: Path) -> tuple[Tree, Sequence[str]]:
    """The tree, below folders that contain everything else, and what its folders at each level are."""
    while True:
        depth = Counter(file.count("/") for file in tree.images).most_common(1)[0][0]
        levels = [PART] * (depth > 0 and _is_given_split(tree))
        levels += _LEVELS[-max(2, depth - len(levels) + 1) :]
        stray = [file for file in tree.images if file.count("/") + 1 != len(levels)]
        if not stray:
            return tree, levels
        tops = {file.split("/")[0] for file in tree.images}
        if len(tops) > 1 or any(file.count("/") < len(_LEVELS) for file in tree.images):
            raise UserError(
                f"{len(stray)} images in {root} are not at {'/'.join(levels)}, such as {stray[0]}: move them"
            )
        tree = _enter(tree, tops.pop() + "/")


def _is_given_split(tree: Tree) -> bool:
    """Whether the top folders are parts of a split. Numbers are not: they are usual names of classes."""
    tops = {file.split("/")[0] for file in tree.images}
    parts = {None if top.isdecimal() else find_part(top) for top in tops}
    return None not in parts and "train" in parts and len(parts) > 1


def _enter(tree: Tree, top: str) -> Tree:
    """The tree below its single top folder, which archives often have."""
    files = tuple(file.removeprefix(top) for file in tree.files if file.startswith(top))
    folders = tuple(folder.removeprefix(top) for folder in tree.folders if folder.startswith(top))
    if tree.root.is_dir():
        return Tree(tree.root / top, "", files, folders)
    return Tree(tree.root, tree.prefix + top, files, folders)


def _empty_classes(tree: Tree, levels: int) -> list[str]:
    full = {file.rpartition("/")[0] for file in tree.images}
    return [folder for folder in tree.folders if folder.count("/") == levels - 2 and folder not in full]


def _open_folder(root: Path | None, columns: Columns, listing: Path | None) -> ImageList:
    if listing is not None:
        raise UserError(f"the data source folder reads no image list: use the source {IMAGE_LIST} for {listing}")
    return read_folder(_need(root, "folder", "folder or archive"), columns)


def _open_list(root: Path | None, columns: Columns, listing: Path | None) -> ImageList:
    if listing is None:
        return read_list(_need(root, IMAGE_LIST, "image list"), columns)
    return read_list(listing, columns, root)


def _need(root: Path | None, source: str, what: str) -> Path:
    if root is None:
        raise UserError(f"the data source {source} needs your {what}: give it with --root")
    if not root.exists():
        raise UserError(f"{root} does not exist: give the {what}")
    return root


def _make_source(name: str, title: str, layouts: tuple[str, ...], read_own: ReadOwn) -> Source:
    return Source(
        name=name,
        title=title,
        origin="yours",
        licence="yours",
        layouts=layouts,
        read=lambda root: read_own(root, Columns(), None),
        read_own=read_own,
    )


FOLDER = _make_source(
    "folder",
    "Your own images, one folder per class, or per domain and class",
    ("class/image", LAYOUT, "train|validation|test/ above either, for a given split", "a zip archive of any of these"),
    _open_folder,
)
LIST = _make_source(
    IMAGE_LIST,
    "Your own images, listed in a CSV or Parquet file",
    ("a .csv, .tsv or .parquet file with the columns path and label, and optionally context and part",),
    _open_list,
)
