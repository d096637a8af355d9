"""Folders and zip archives seen alike: the images below a place, and the folders that hold none."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from stablenet.data.table import check_member_name
from stablenet.errors import UserError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
_DEPTH = 5  # how deep below the given place a data set may begin

# (folded name of a folder, folded names of its entries) -> does the data set begin there?
Begins: TypeAlias = Callable[[str, set[str]], bool]


@dataclass(frozen=True)
class Tree:
    """Files below a base folder. root: folder or archive; prefix: base inside root ("" or ending in "/").

    files, folders: POSIX paths relative to the base, sorted, hidden ones left out.
    """

    root: Path
    prefix: str
    files: tuple[str, ...]
    folders: tuple[str, ...]

    @property
    def images(self) -> list[str]:
        return [file for file in self.files if file.lower().endswith(IMAGE_SUFFIXES)]

    def read_text(self, file: str) -> str:
        """The text of a small file, such as a split list."""
        if self.root.is_dir():
            return (self.root / self.prefix / file).read_text(encoding="utf-8")
        with zipfile.ZipFile(self.root) as archive:
            return archive.read(self.prefix + file).decode("utf-8")


def fold(name: str) -> str:
    """A name as it is compared: case, blanks, hyphens and underscores do not count."""
    return "".join(letter for letter in name.lower() if letter not in " -_")


def find_tree(root: Path, name: str, begins: Begins, expected: str) -> Tree:
    """The tree of the data set `name` at or below root, or in an archive there whose name begins so."""
    if root.is_file():
        return _find_in_archive(root, name, begins, expected)
    base = _find_folder(root, begins)
    if base is not None:
        return _list_folder(base)
    archives = [file for file in sorted(root.glob("*.zip")) if fold(file.stem).startswith(fold(name))]
    if len(archives) > 1:
        raise UserError(f"{root} holds {len(archives)} archives for {name}: give one of them, such as {archives[0]}")
    if archives:
        return _find_in_archive(archives[0], name, begins, expected)
    there = sorted(entry.name for entry in root.iterdir())
    raise UserError(f"{name} was not found in {root}, which holds {_some(there)}: expected {expected}")


def match_names(kind: str, found: Sequence[str], accepted: Mapping[str, Sequence[str]], place: Path) -> dict[str, str]:
    """Folder names to the data set's own names, one to one; anything missing or strange is the user's to mend.

    accepted: own name -> the spellings it may have besides itself.
    """
    spellings = {fold(spelling): own for own, others in accepted.items() for spelling in (own, *others)}
    names = {name: spellings[fold(name)] for name in found if fold(name) in spellings}
    missing = [own for own in accepted if own not in names.values()]
    strange = [name for name in found if name not in names]
    if missing:
        unknown = f" and the unknown {_some(strange)}" if strange else ""
        raise UserError(
            f"{place} lacks the {kind} {', '.join(missing)}: found {_some(names)}{unknown}; rename or add the folder"
        )
    if strange:
        raise UserError(f"{place} holds the unknown {kind} {_some(strange)}: expected {', '.join(accepted)} alone")
    if len(set(names.values())) < len(names):
        raise UserError(f"{place} holds the same {kind} under two names: {_some(names)}; keep one of them")
    return names


def refuse_empty(pairs: Iterable[str], place: Path) -> None:
    """Name every class folder without an image at once."""
    empty = sorted(pairs)
    if empty:
        raise UserError(f"{len(empty)} class folders in {place} hold no image: {_some(empty, 20)}")


def _some(names: Iterable[str], limit: int = 8) -> str:
    listed = list(names)
    rest = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return (", ".join(listed[:limit]) or "nothing") + rest


def _find_folder(root: Path, begins: Begins) -> Path | None:
    """Breadth first, so that the shallowest match wins; only folders are looked at."""
    level = [root]
    for _ in range(_DEPTH + 1):
        below: list[Path] = []
        for folder in level:
            with os.scandir(folder) as found:
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
    for current, names, leaves in os.walk(base, followlinks=True):
        real = os.path.realpath(current)
        if real in seen:  # a link back up the tree
            names.clear()
            continue
        seen.add(real)
        names[:] = sorted(name for name in names if not name.startswith((".", "__MACOSX")))
        below = Path(current).relative_to(base)
        folders += [(below / name).as_posix() for name in names]
        files += [(below / leaf).as_posix() for leaf in leaves if not leaf.startswith(".")]
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
        f"{name} was not found in {archive}, which holds {_some(sorted(children['']))}: expected {expected}"
    )


def list_members(archive: Path) -> list[str]:
    """Names in a zip archive, folders ending in "/", all proven to stay inside it; hidden ones left out."""
    try:
        with zipfile.ZipFile(archive) as opened:
            names = opened.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{archive} is no readable zip archive ({error}): get it from its origin again") from error
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
