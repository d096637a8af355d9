"""Trees of images in folders and zip archives, seen alike; and how a copy differs from the layout that was expected.

Readers stop at the first difference, in the words of what they read. Here nothing is read but names of files.
"""

from __future__ import annotations

import os
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from stablenet.data.image_list import check_member_name
from stablenet.errors import UserError
from stablenet.files import check_names, name_refusals, read_text, refuse_folder

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
_DEPTH = 5  # levels below the given path at which a data set may begin

# (folded name of a folder, folded names of its entries) -> whether the data set begins there
Begins: TypeAlias = Callable[[str, set[str]], bool]


@dataclass(frozen=True)
class Tree:
    """Files below a base folder. root: folder or archive; prefix: base inside root ("" or ending in "/").

    files, folders: POSIX paths relative to the base, sorted, without hidden ones.
    """

    root: Path
    prefix: str
    files: tuple[str, ...]
    folders: tuple[str, ...]

    @property
    def images(self) -> list[str]:
        return [file for file in self.files if file.lower().endswith(IMAGE_SUFFIXES)]

    def read_text(self, file: str) -> str:
        """Read a small text file, such as a split list."""
        if self.root.is_dir():
            return read_text(self.root / self.prefix / file)
        with zipfile.ZipFile(self.root) as archive:
            return archive.read(self.prefix + file).decode("utf-8")


def fold(name: str) -> str:
    """Normalize a name for comparison: case, spaces, hyphens and underscores are ignored."""
    return "".join(letter for letter in name.lower() if letter not in " -_")


def find_tree(root: Path, name: str, begins: Begins, expected: str) -> Tree:
    """Find the data set `name` at or below root, or in an archive there whose name begins with `name`."""
    if root.is_file():
        return _find_in_archive(root, name, begins, expected)
    base = _find_folder(root, begins)
    if base is not None:
        return _list_folder(base)
    archives = [file for file in sorted(root.glob("*.zip")) if fold(file.stem).startswith(fold(name))]
    if len(archives) > 1:
        raise UserError(f"{root} contains {len(archives)} archives for {name}: give one of them, such as {archives[0]}")
    if archives:
        return _find_in_archive(archives[0], name, begins, expected)
    there = sorted(entry.name for entry in root.iterdir())
    raise UserError(f"{name} was not found in {root}, which contains {some(there)}: expected {expected}")


def match_names(kind: str, found: Sequence[str], accepted: Mapping[str, Sequence[str]], place: Path) -> dict[str, str]:
    """Map folder names to the data set's names, one to one; missing or unknown names are errors.

    accepted: name -> its alternative spellings.
    """
    spellings = {fold(spelling): own for own, others in accepted.items() for spelling in (own, *others)}
    names = {name: spellings[fold(name)] for name in found if fold(name) in spellings}
    missing = [own for own in accepted if own not in names.values()]
    unknown = [name for name in found if name not in names]
    if missing:
        others = f" and the unknown {some(unknown)}" if unknown else ""
        raise UserError(
            f"{place} lacks the {kind} {', '.join(missing)}: found {some(names)}{others}; rename or add the folder"
        )
    if unknown:
        raise UserError(f"{place} contains the unknown {kind} {some(unknown)}: expected only {', '.join(accepted)}")
    if len(set(names.values())) < len(names):
        raise UserError(f"{place} contains the same {kind} under two names: {some(names)}; keep one of them")
    return names


def refuse_empty(pairs: Iterable[str], place: Path) -> None:
    """Raise an error that lists all class folders without images."""
    empty = sorted(pairs)
    if empty:
        raise UserError(f"{len(empty)} class folders in {place} contain no images: {some(empty, 20)}")


def some(names: Iterable[str], limit: int = 8) -> str:
    """The first names of a list, and how many more there are."""
    listed = list(names)
    rest = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return (", ".join(listed[:limit]) or "nothing") + rest


def _find_folder(root: Path, begins: Begins) -> Path | None:
    """Search folders breadth-first, so that the shallowest match wins."""
    level = [root]
    for _ in range(_DEPTH + 1):
        below: list[Path] = []
        for folder in level:
            with name_refusals(folder), os.scandir(folder) as found:
                entries = sorted((e for e in found if not e.name.startswith(".")), key=lambda e: e.name)
            if begins(fold(folder.name), {fold(entry.name) for entry in entries}):
                return folder
            below += [folder / entry.name for entry in entries if entry.is_dir()]
        level = below
    return None


def _list_folder(base: Path) -> Tree:
    files: list[str] = []
    folders: list[str] = []
    seen: set[str] = set()
    for current, names, leaves in os.walk(base, onerror=refuse_folder, followlinks=True):
        real = os.path.realpath(current)
        if real in seen:  # a link back up the tree
            names.clear()
            continue
        seen.add(real)
        names[:] = sorted(name for name in names if not name.startswith((".", "__MACOSX")))
        below = Path(current).relative_to(base)
        folders += [(below / name).as_posix() for name in names]
        files += [(below / leaf).as_posix() for leaf in leaves if not leaf.startswith(".")]
    check_names(files)
    return Tree(base, "", tuple(sorted(files)), tuple(sorted(folders)))


def _find_in_archive(archive: Path, name: str, begins: Begins, expected: str) -> Tree:
    members = list_members(archive)
    children: dict[str, set[str]] = {"": set()}
    for member in members:
        parts = member.rstrip("/").split("/")
        for depth, part in enumerate(parts[: _DEPTH + 1]):
            children.setdefault("/".join(parts[:depth]), set()).add(part)
    for folder in sorted(children, key=lambda path: (path.count("/") + bool(path), path)):
        own = folder.rpartition("/")[2] if folder else archive.stem
        if begins(fold(own), {fold(child) for child in children[folder]}):
            return _list_archive(archive, f"{folder}/" if folder else "", members)
    raise UserError(
        f"{name} was not found in {archive}, which contains {some(sorted(children['']))}: expected {expected}"
    )


def list_members(archive: Path) -> list[str]:
    """Names in a zip archive, without hidden ones; folders end in "/". Unsafe paths are rejected."""
    try:
        with zipfile.ZipFile(archive) as opened:
            names = opened.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{archive} is not a readable zip archive ({error}): download it again") from error
    for name in names:
        check_member_name(name, archive)
    return [n for n in names if not any(part.startswith((".", "__MACOSX")) for part in n.split("/"))]


def _list_archive(archive: Path, prefix: str, members: Sequence[str]) -> Tree:
    below = [name[len(prefix) :] for name in members if name.startswith(prefix) and name != prefix]
    files = sorted(name for name in below if not name.endswith("/"))
    folders = {name.rstrip("/") for name in below if name.endswith("/")}
    for file in files:
        parts = file.split("/")[:-1]
        folders |= {"/".join(parts[: depth + 1]) for depth in range(len(parts))}
    return Tree(archive, prefix, tuple(files), tuple(sorted(folders)))


def sorted_names(kind: str, names: Iterable[str], place: Path) -> list[str]:
    """Distinct names, sorted; names that differ only in case or separators are an error."""
    spellings: dict[str, set[str]] = defaultdict(set)
    for name in names:
        spellings[fold(name)].add(name)
    doubled = [sorted(group) for group in spellings.values() if len(group) > 1]
    if doubled:
        raise UserError(f"{place} spells the same {kind} differently: {' and '.join(doubled[0])}; use one spelling")
    return sorted(name for group in spellings.values() for name in group)


PACKED = (".tar", ".tar.gz", ".tgz", ".7z", ".rar")


@dataclass(frozen=True)
class Level:
    """The folders that must lie at one level. kind: what they are, in the plural.   spellings: name -> others.
    below: what must lie in the folder of a name, given the names of the folders found in it; None for images.
    others_allowed: whether further folders may lie there.
    """

    kind: str
    spellings: Mapping[str, Sequence[str]]
    below: Callable[[str, Sequence[str]], Level | None] = field(default=lambda name, found: None)
    others_allowed: bool = False

    @property
    def names(self) -> dict[str, str]:
        """Folded spelling -> name."""
        return {fold(spelling): own for own, others in self.spellings.items() for spelling in (own, *others)}


def find_differences(name: str, root: Path, top: Level, expected: str, least: int = 2) -> tuple[str, ...]:
    """One sentence per difference between what lies at root and the layout; none where a reader would read it.

    least: how many folders of the top level must lie together for the data set to be found there.
    """
    packed = [path.name for path in sorted(root.iterdir())] if root.is_dir() else [root.name]
    packed = [file for file in packed if file.lower().endswith(PACKED)]
    differences = [f"{file} is not read: unpack it, or pack its folders as .zip" for file in packed]
    try:
        tree = find_tree(root, name, lambda _, names: len(top.names.keys() & names) >= least, expected)
    except UserError as error:
        resembling = _find_resembling(name, root, top, expected)
        if resembling is None:
            return (*differences, str(error))
        tree = resembling
    return (*differences, *_compare(tree, "", top))


def _find_resembling(name: str, root: Path, top: Level, expected: str) -> Tree | None:
    """Where the top level lies under other names: above a folder that holds what belongs into one of its folders."""

    def holds(_: str, names: set[str]) -> bool:
        return any(_resembles(top.below(own, sorted(names)), names) for own in top.spellings)

    try:
        inner = find_tree(root, name, holds, expected)
        held = fold(Path(inner.prefix).name or inner.root.name)
        return find_tree(root, name, lambda _, names: held in names, expected)
    except UserError:
        return None


def _resembles(level: Level | None, names: Iterable[str]) -> bool:
    """Whether at least half of a level's folders are there."""
    return level is not None and 2 * len(level.names.keys() & {fold(name) for name in names}) >= len(level.spellings)


def _compare(tree: Tree, folder: str, level: Level) -> Iterator[str]:
    """Differences in a folder ("" for the base) and below it."""
    there = list_folders(tree, folder)
    place = str(tree.root / tree.prefix / folder) if folder else str(tree.root / tree.prefix)
    found: dict[str, list[str]] = {}
    for name in there:
        own = level.names.get(fold(name))
        if own is not None:
            found.setdefault(own, []).append(name)
    unknown = [name for name in there if fold(name) not in level.names]
    missing = [own for own in level.spellings if own not in found]
    if missing:
        spelled = {own: f"{own} (or {', '.join(level.spellings[own])})" for own in missing if level.spellings[own]}
        yield f"{place} lacks the {level.kind} {', '.join(spelled.get(own, own) for own in missing)}"
    renamed = {name: own for own in missing for name in unknown if _belongs(tree, folder, name, own, level)}
    for name, own in renamed.items():
        yield f"{place}/{name} holds what belongs into {own}: rename it"
        yield from _compare_below(tree, folder, own, name, level)
    unknown = [name for name in unknown if name not in renamed]
    if unknown and not level.others_allowed:
        yield f"{place} contains the unknown {level.kind} {some(unknown)}: move or rename them"
    for own, spellings in found.items():
        if len(spellings) > 1:
            yield f"{place} contains {own} under several names, {', '.join(spellings)}: keep one of them"
            continue
        yield from _compare_below(tree, folder, own, spellings[0], level)


def _compare_below(tree: Tree, folder: str, own: str, name: str, level: Level) -> Iterator[str]:
    """Differences below the folder `name`, which is or should be the level's `own`."""
    path = _join(folder, name)
    below = level.below(own, list_folders(tree, path))
    if below is not None:
        yield from _compare(tree, path, below)
    elif not any(file.startswith(f"{path}/") for file in tree.images):
        yield f"{tree.root / tree.prefix / path} contains no images"


def _belongs(tree: Tree, folder: str, name: str, own: str, level: Level) -> bool:
    """Whether a folder with an unknown name holds what belongs into the level's `own`, and into no other."""
    there = list_folders(tree, _join(folder, name))
    fitting = [each for each in level.spellings if _resembles(level.below(each, there), there)]
    return fitting == [own]


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def list_folders(tree: Tree, folder: str) -> list[str]:
    """Names of the folders right below a folder ("" for the base)."""
    return [name.rpartition("/")[2] for name in tree.folders if name.rpartition("/")[0] == folder]
