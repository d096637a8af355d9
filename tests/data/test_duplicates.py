"""Identical files across domains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stablenet.data.cache import prepare
from stablenet.data.duplicates import find_duplicates, fingerprint_files
from stablenet.data.sources import read_source
from stablenet.data.table import ImageTable


@pytest.mark.parametrize("packed", [False, True])
def test_copies_across_domains_and_classes_are_found(
    packed: bool, write_files: Callable[..., Path], zip_folder: Callable[..., Path], tmp_path: Path
) -> None:
    root = write_files([f"{d}/{c}/{k}.png" for d in ("n", "s") for c in ("cat", "dog") for k in range(3)])
    (root / "s/cat/1.png").write_bytes((root / "n/cat/0.png").read_bytes())  # across domains
    (root / "n/dog/2.png").write_bytes((root / "n/cat/2.png").read_bytes())  # across classes
    (root / "s/dog/1.png").write_bytes((root / "s/dog/0.png").read_bytes())  # neither
    table = read_source("folder", zip_folder(root) if packed else root)
    assert isinstance(table, ImageTable)
    expected = [["n/cat/0.png", "s/cat/1.png"], ["n/cat/2.png", "n/dog/2.png"]]
    assert sorted(find_duplicates(table.rows, fingerprint_files(table))) == expected
    store = prepare(table, tmp_path / "store").store
    assert store.header.duplicates == expected  # found by what was decoded, not by checksums of files


def test_equal_sizes_alone_are_no_copies(write_files: Callable[..., Path]) -> None:
    table = read_source("folder", write_files(["n/cat/1.png", "s/cat/1.png", "s/cat/2.png"]))
    assert len({(table.root / path).stat().st_size for path in table.rows["path"]}) == 1
    assert find_duplicates(table.rows, fingerprint_files(table)) == []


def test_a_link_that_leads_nowhere_is_no_copy(write_files: Callable[..., Path]) -> None:
    root = write_files(["n/cat/1.png", "s/cat/1.png"])
    (root / "s/cat/2.png").symlink_to(root / "gone.png")
    (root / "n/cat/2.png").symlink_to(root / "gone.png")
    table = read_source("folder", root)
    assert len(table.rows) == 4
    assert find_duplicates(table.rows, fingerprint_files(table)) == []
