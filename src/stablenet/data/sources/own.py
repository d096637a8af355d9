"""Users' own images, wherever they lie: folders, an archive or an image list. All commands read them here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stablenet.data.columns import CONTEXT, LABEL, NO_PART, PART, PATH, Columns, find_part
from stablenet.data.image_list import ImageList, make_image_table
from stablenet.data.sources.folder import Tree, find_tree, refuse_empty, sorted_names
from stablenet.data.sources.listing import NO_CONTEXT, read_list
from stablenet.data.sources.source import ReadOwn, Source
from stablenet.errors import UserError

_LEVELS = ("domain", "class", "image")  # in folders; images without contexts have no domain
LAYOUT = "/".join(_LEVELS)


def open_own(
    place: Path, *, path: str = "", label: str = "", context: str = "", part: str = "", root: Path | None = None
) -> ImageList:
    """The user's images at a place: a folder or zip archive of class/image or domain/class/image, below train/,
    validation/ and test/ if a split is given; or an image list, .csv, .tsv or .parquet.

    path, label, context, part: names of a list's columns, see `Columns`.   root: where a list's relative paths begin,
    if they do not begin in its folder.
    The list says what was found: its `contexts`, `given_parts`, and in words `describe`; its `name` is that of the
    source that reads the same, "folder" or "table".
    """
    if not place.exists():
        raise UserError(f"{place} does not exist: give a folder of images, a CSV file or the name of a source")
    columns = Columns(path=path, label=label, context=context, part=part)
    if place.is_dir() or place.suffix.lower() == ".zip":
        return read_folder(place, columns)
    return read_list(place, columns, root)


def read_folder(root: Path, columns: Columns | None = None) -> ImageList:
    """Read a tree; contexts and classes are the names of folders, sorted. A context may lack a class."""
    columns = columns or Columns()
    _refuse_columns(root, columns)
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
    whole = root.resolve()
    title = whole.stem if whole.is_file() else whole.name
    return replace(make_image_table("folder", tree.root, classes, contexts, records), title=title)


def _refuse_columns(root: Path, columns: Columns) -> None:
    named = [kind for kind in (PATH, LABEL, CONTEXT, PART) if getattr(columns, kind)]
    if columns.part == NO_PART:
        named.remove(PART)
    if named:
        raise UserError(
            f"{root} is no image list: the names of folders are its classes and contexts; leave {named[0]} out"
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
        raise UserError(f"the data source folder reads no image list: use the source table for {listing}")
    return read_folder(_need(root, "folder", "folder or archive"), columns)


def _open_list(root: Path | None, columns: Columns, listing: Path | None) -> ImageList:
    if listing is None:
        return read_list(_need(root, "table", "image list"), columns)
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
IMAGE_LIST = _make_source(
    "table",
    "Your own images, listed in a CSV or Parquet table",
    ("a .csv, .tsv or .parquet file with the columns path and label, and if there are any context and part",),
    _open_list,
)
