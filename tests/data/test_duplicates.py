"""Identical files across domains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stablenet.data.duplicates import find_duplicates
from stablenet.data.sources import read_source
from stablenet.data.table import ImageTable


@pytest.mark.parametrize("packed", [False, True])
def test_copies_across_domains_and_classes_are_found(
    packed: bool, write_files: Callable[..., Path], zip_folder: Callable[..., Path]
) -> None:
    root = write_files([f"{d}/{c}/{k}.png" for d in ("n", "s") for c in ("cat", "dog") for k in range(3)])
    (root / "s/cat/1.png").write_bytes((root / "n/cat/0.png").read_bytes())  # across domains
    (root / "n/dog/2.png").write_bytes((root / "n/cat/2.png").read_bytes())  # across classes
    (root / "s/dog/1.png").write_bytes((root / "s/dog/0.png").read_bytes())  # neither
    table = read_source("folder", zip_folder(root) if packed else root)
    assert isinstance(table, ImageTable)
    assert sorted(find_duplicates(table)) == [("n/cat/0.png", "s/cat/1.png"), ("n/cat/2.png", "n/dog/2.png")]


def test_equal_sizes_alone_are_no_copies(write_files: Callable[..., Path]) -> None:
    table = read_source("folder", write_files(["n/cat/1.png", "s/cat/1.png", "s/cat/2.png"]))
    assert len({(table.root / path).stat().st_size for path in table.rows["path"]}) == 1
    assert find_duplicates(table) == []
