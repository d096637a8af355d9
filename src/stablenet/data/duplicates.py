"""Identical files in a table: the same image in two domains makes a target domain less unseen than it looks."""

from __future__ import annotations

import hashlib
import zipfile
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable

import pandas as pd

from stablenet.data.table import ImageTable
from stablenet.errors import UserError


def find_duplicates(rows: pd.DataFrame, content: Iterable[Hashable]) -> list[list[str]]:
    """Groups of ids whose files are byte for byte the same and lie in more than one domain or class.

    rows: with the columns id, label and domain.   content: of every row a value that equal files share, and only they.
    """
    groups: dict[Hashable, dict[str, tuple[int, int]]] = defaultdict(dict)
    for key, image, *place in zip(content, rows["id"], rows["label"], rows["domain"], strict=True):
        groups[key][image] = (place[0], place[1])
    return [list(group) for group in groups.values() if len(set(group.values())) > 1]


def fingerprint_files(table: ImageTable) -> list[Hashable]:
    """A value per row that equal files share, without reading all of them.

    An archive has checksums of its own; in a folder only files of equal size are read. A file that cannot be read,
    such as a link that leads nowhere, is like no other: decoding reports it with all others.
    """
    paths = table.rows["path"].tolist()
    if not table.root.is_dir():
        with zipfile.ZipFile(table.root) as archive:
            members = {info.filename: (info.CRC, info.file_size) for info in archive.infolist()}
        return [members[path] for path in paths]
    sizes = [_size(table, path) for path in paths]
    alike = Counter(sizes)
    return [_hash(table, path) if alike[size] > 1 else size for path, size in zip(paths, sizes, strict=True)]


def _size(table: ImageTable, path: str) -> Hashable:
    try:
        return (table.root / path).stat().st_size
    except OSError:
        return path


def _hash(table: ImageTable, path: str) -> Hashable:
    try:
        return hashlib.sha256(table.open_bytes(path)).digest()
    except UserError:
        return path
