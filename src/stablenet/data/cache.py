"""The cache of what is made once and read by many runs: prepared stores and kept features.

Everything in it can be made again. A folder is built under a lock and renamed into place, and is cleared the same way.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from stablenet.errors import UserError
from stablenet.files import PARTIAL, is_locked, lock, lock_file, name_refusals
from stablenet.registry import unknown_name

Kind = Literal["stores", "features", "pictures", "unfinished"]
KINDS: tuple[Kind, ...] = get_args(Kind)
HEADER = "store.json"  # the file by which a prepared store is known
FEATURES = "features-"  # how names of kept features begin
PICTURES = "pictures-"  # and those of pictures that were written out of a data set


def cache_folder() -> Path:
    """STABLENET_CACHE, or ~/.cache/stablenet."""
    return Path(os.environ.get("STABLENET_CACHE") or Path.home() / ".cache" / "stablenet")


def name_cache(path: Path) -> None:
    """Print where the cache is, if `path` is the first entry written to it."""
    folder = cache_folder()
    if path.parent == folder and not any(folder.glob("[!.]*")):
        logging.getLogger("stablenet").warning(
            "prepared images and features are kept in %s (STABLENET_CACHE chooses another place); "
            "`stablenet data list --cache` shows their size, `stablenet data clear-cache` deletes them",
            folder,
        )


@dataclass(frozen=True)
class CacheEntry:
    """A folder of the cache.   used: whether a process is building it."""

    kind: Kind
    path: Path
    size: int
    used: bool


def list_cache() -> list[CacheEntry]:
    """What is in the cache, largest first; other files and folders are not ours and not listed."""
    folder = cache_folder()
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    found = [CacheEntry(kind, path, measure_folder(path), _is_used(path)) for kind, path in _sort(paths)]
    return sorted(found, key=lambda entry: -entry.size)


def clear_cache(entries: Iterable[CacheEntry]) -> tuple[int, list[CacheEntry]]:
    """Delete the entries; return the bytes freed and those left because a process is building them.

    A run that has opened an entry goes on reading it: its files are deleted when it closes them.
    """
    freed, left = 0, []
    for entry in entries:
        if _is_used(entry.path):
            left.append(entry)
            continue
        with lock(_final(entry.path)), name_refusals(entry.path):
            aside = entry.path.with_name(f".{_final(entry.path).name}{PARTIAL}cleared")
            if entry.path.exists():
                entry.path.rename(aside)  # nobody finds half an entry
                shutil.rmtree(aside)
                freed += entry.size
    return freed, left


def check_kinds(kinds: Iterable[str]) -> None:
    for kind in kinds:
        if kind not in KINDS:
            raise UserError(unknown_name("kind", kind, KINDS))


def measure_folder(path: Path) -> int:
    """Bytes of all files below a folder; those that vanish meanwhile count nothing."""
    total = 0
    for place, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                continue
    return total


def _sort(paths: Iterable[Path]) -> Iterator[tuple[Kind, Path]]:
    for path in paths:
        if not path.is_dir() or path.is_symlink():
            continue
        if path.name.startswith(".") and PARTIAL in path.name:
            yield "unfinished", path
        elif path.name.startswith(FEATURES):
            yield "features", path
        elif path.name.startswith(PICTURES):
            yield "pictures", path
        elif (path / HEADER).is_file():
            yield "stores", path


def _final(path: Path) -> Path:
    """The folder that an entry is, or was to become."""
    name = path.name
    return path.with_name(name[1:].partition(PARTIAL)[0]) if name.startswith(".") else path


def _is_used(path: Path) -> bool:
    return is_locked(lock_file(_final(path)))
