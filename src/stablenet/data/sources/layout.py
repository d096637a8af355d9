"""A dry look at a user's copy of a published data set: every difference to the expected layout at once.

Readers stop at the first difference, in the words of what they read. Here nothing is read but names of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
        resembling = _find_resembling(name, root, top, expected)
        if resembling is None:
            return (*told, str(error))
        tree = resembling
    return (*told, *_compare(tree, "", top))


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
