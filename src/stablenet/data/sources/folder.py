"""Any folder tree domain/class/image, in a folder or a zip archive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from stablenet.data.sources.base import Source
from stablenet.data.sources.tree import Tree, find_tree, fold, refuse_empty
from stablenet.data.table import ImageTable, make_image_table
from stablenet.errors import UserError

LAYOUT = "domain/class/image"


def read(root: Path) -> ImageTable:
    """Domains and classes are the folder names, in alphabetical order. A domain may lack a class."""
    tree = find_tree(root, "folder", lambda _, names: bool(names), LAYOUT)
    if not tree.images:
        raise UserError(f"{root} holds no images: expected {LAYOUT}")
    tree = _enter_single_folder(tree)
    refuse_empty(_empty_classes(tree), root)
    places = [file.split("/") for file in tree.images]
    stray = ["/".join(parts) for parts in places if len(parts) != 3]
    if stray:
        raise UserError(f"{len(stray)} images in {root} are not at {LAYOUT}, such as {stray[0]}: move them")
    domains = _sorted_names("domain", (parts[0] for parts in places), root)
    classes = _sorted_names("class", (parts[1] for parts in places), root)
    records: list[dict[str, object]] = [
        {
            "id": file,
            "path": tree.prefix + file,
            "label": classes.index(parts[1]),
            "domain": domains.index(parts[0]),
        }
        for file, parts in zip(tree.images, places, strict=True)
    ]
    return make_image_table("folder", tree.root, classes, domains, records)


def _enter_single_folder(tree: Tree) -> Tree:
    """Archives often wrap everything in one folder: domain/class/image then begins one level deeper."""
    tops = {file.split("/")[0] for file in tree.images}
    if len(tops) != 1 or any(file.count("/") != 3 for file in tree.images):
        return tree
    top = tops.pop() + "/"
    files = tuple(file.removeprefix(top) for file in tree.files if file.startswith(top))
    folders = tuple(folder.removeprefix(top) for folder in tree.folders if folder.startswith(top))
    if tree.root.is_dir():
        return Tree(tree.root / top, "", files, folders)
    return Tree(tree.root, tree.prefix + top, files, folders)


def _empty_classes(tree: Tree) -> list[str]:
    full = {file.rpartition("/")[0] for file in tree.images}
    return [folder for folder in tree.folders if folder.count("/") == 1 and folder not in full]


def _sorted_names(kind: str, names: Iterable[str], place: Path) -> list[str]:
    """Distinct names in order; two that differ only in case or separators are surely meant to be one."""
    spellings: dict[str, set[str]] = defaultdict(set)
    for name in names:
        spellings[fold(name)].add(name)
    doubled = [sorted(group) for group in spellings.values() if len(group) > 1]
    if doubled:
        raise UserError(f"{place} names one {kind} differently: {' and '.join(doubled[0])}; rename them alike")
    return sorted(name for group in spellings.values() for name in group)


SOURCE = Source(
    name="folder",
    title="Your own images, one folder per domain and class",
    origin="yours",
    licence="yours",
    layouts=(LAYOUT, f"a zip archive of {LAYOUT}"),
    read=read,
)
