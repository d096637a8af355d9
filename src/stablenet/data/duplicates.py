"""Identical files in a table: the same image in two domains makes a target domain less unseen than it looks."""

from __future__ import annotations

import hashlib
import zipfile
from collections import defaultdict
from collections.abc import Hashable

from stablenet.data.table import ImageTable


def find_duplicates(table: ImageTable) -> list[tuple[str, ...]]:
    """Groups of ids whose files are byte for byte the same and lie in more than one domain or class.

    Cheap: an archive's own checksums, or in a folder the contents of files of equal size only.
    """
    places = zip(table.rows["domain"], table.rows["label"], strict=True)
    place = dict(zip(table.rows["id"], places, strict=True))
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for image, key in _fingerprints(table).items():
        groups[key].append(image)
    return [tuple(group) for group in groups.values() if len({place[image] for image in group}) > 1]


def _fingerprints(table: ImageTable) -> dict[str, Hashable]:
    """Id -> a value that equal files share."""
    paths = dict(zip(table.rows["id"], table.rows["path"], strict=True))
    if not table.root.is_dir():
        with zipfile.ZipFile(table.root) as archive:
            members = {info.filename: (info.CRC, info.file_size) for info in archive.infolist()}
        return {image: members[path] for image, path in paths.items()}
    sizes = {image: (table.root / path).stat().st_size for image, path in paths.items()}
    alike: dict[int, int] = defaultdict(int)
    for size in sizes.values():
        alike[size] += 1
    return {
        image: hashlib.sha256(table.open_bytes(paths[image])).digest() if alike[size] > 1 else ("size", size)
        for image, size in sizes.items()
    }
