"""A dry look at a user's copy of a published data set: every difference to the expected layout at once.

Readers stop at the first difference, in the words of what they read. Here nothing is read but names of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stablenet.data.sources.folder import Tree, find_tree, fold, some
from stablenet.errors import UserError

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
    told = [f"{file} is not read: unpack it, or pack its folders as .zip" for file in packed]
    try:
        tree = find_tree(root, name, lambda _, names: len(top.names.keys() & names) >= least, expected)
    except UserError as error:
        return (*told, str(error))
    return (*told, *_compare(tree, "", top))


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
    if unknown and not level.others_allowed:
        yield f"{place} contains the unknown {level.kind} {some(unknown)}: move or rename them"
    for own, spellings in found.items():
        if len(spellings) > 1:
            yield f"{place} contains {own} under several names, {', '.join(spellings)}: keep one of them"
            continue
        path = f"{folder}/{spellings[0]}" if folder else spellings[0]
        below = level.below(own, list_folders(tree, path))
        if below is not None:
            yield from _compare(tree, path, below)
        elif not any(file.startswith(f"{path}/") for file in tree.images):
            yield f"{place}/{spellings[0]} contains no images"


def list_folders(tree: Tree, folder: str) -> list[str]:
    """Names of the folders right below a folder ("" for the base)."""
    return [name.rpartition("/")[2] for name in tree.folders if name.rpartition("/")[0] == folder]
