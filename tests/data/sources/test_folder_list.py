"""Your own data: folder trees and image lists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from stablenet.data.sources import SOURCES, read_source
from stablenet.errors import UserError

FILES = ["north/cat/1.png", "north/cat/2.png", "north/dog/1.png", "south/cat/1.png"]


def test_folder_tree_and_its_archive(write_files: Callable[..., Path], zip_folder: Callable[..., Path]) -> None:
    root = write_files(FILES)
    table = read_source("folder", root)
    assert (table.domains, table.classes) == (("north", "south"), ("cat", "dog"))
    assert list(table.rows["id"]) == FILES
    assert list(table.rows["label"]) == [0, 0, 1, 0]
    assert list(table.rows["domain"]) == [0, 0, 0, 1]
    wrapped = read_source("folder", zip_folder(root, "wrapped/"))
    assert list(wrapped.rows["id"]) == FILES
    assert wrapped.open_bytes(wrapped.rows["path"][3]) == (root / FILES[3]).read_bytes()


def test_folder_wrapped_in_a_folder(write_files: Callable[..., Path]) -> None:
    table = read_source("folder", write_files(f"top/{file}" for file in FILES))
    assert list(table.rows["id"]) == FILES
    assert table.open_bytes(FILES[0])


def test_folder_mistakes(write_files: Callable[..., Path], tmp_path: Path) -> None:
    root = write_files(FILES)
    (root / "south/dog").mkdir()
    (root / "south/cow").mkdir()
    with pytest.raises(UserError, match=r"2 class folders in .* contain no images: south/cow, south/dog"):
        read_source("folder", root)
    (root / "south/dog").rmdir()
    (root / "south/cow").rmdir()
    (root / "south/cat").rename(root / "south/Cat")
    with pytest.raises(UserError, match="spells the same class differently: Cat and cat"):
        read_source("folder", root)
    (root / "stray.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"1 images in .* are not at domain/class/image, such as stray\.png"):
        read_source("folder", root)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"folder was not found|contains no images"):
        read_source("folder", tmp_path / "empty")


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_listing(suffix: str, write_files: Callable[..., Path]) -> None:
    root = write_files(["x/a.png", "x/b.png", "NA.png"])
    rows = pd.DataFrame(
        {"path": ["x/b.png", "x/a.png", "NA.png"], "label": [10, 9, 10], "domain": ["s", "n", "NA"], "more": 1}
    )
    file = root / f"list{suffix}"
    if suffix == ".parquet":
        rows.to_parquet(file)
    else:
        rows.to_csv(file, index=False, sep="\t" if suffix == ".tsv" else ",")
    table = read_source("table", file)
    assert table.classes == ("9", "10"), "numbers in the order of their value"
    assert table.domains == ("NA", "n", "s")
    assert list(table.rows["id"]) == ["NA.png", "x/a.png", "x/b.png"]
    assert list(table.rows["label"]) == [1, 0, 1]
    assert list(table.rows["domain"]) == [0, 1, 2]
    assert table.open_bytes("x/a.png") == (root / "x/a.png").read_bytes()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\nx.png,1\n", r"lacks the columns \['domain'\]"),
        ("path,label,domain\n", "has no rows: expected one per image"),
        ("path,label,domain\nx.png,,a\n", "1 of 1 rows lack a path, label or domain, first in row 1"),
        ("path,label,domain\n../x.png,1,a\n", "relative to the list's folder"),
        ("path,label,domain\n/x.png,1,a\n", "relative to the list's folder"),
        ("path,label,domain\nx.png,1,a\ny.png,1,a\nz.png,1,a\n", r"2 files listed in .* do not exist: y\.png, z\.png"),
        ("path,label,domain\nx.png,1,a\nx.png,1,b\n", "occur more than once"),
    ],
)
def test_listing_mistakes(text: str, message: str, write_files: Callable[..., Path]) -> None:
    root = write_files(["x.png"])
    (root / "list.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        read_source("table", root / "list.csv")


def test_not_a_table(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected a \.csv, \.tsv or \.parquet file"):
        read_source("table", tmp_path)
    (tmp_path / "x.parquet").write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot be read as a table"):
        read_source("table", tmp_path / "x.parquet")


def test_every_source_says_what_it_is() -> None:
    for name in SOURCES:
        source = SOURCES[name]
        assert source.name == name
        assert source.title
        assert source.origin
        assert source.licence
        assert source.layouts
        assert source.counts or name in ("folder", "table", "composed")
        assert not source.downloads or source.by_hand
    with pytest.raises(UserError, match="unknown data source 'pcas': did you mean 'pacs'"):
        read_source("pcas", Path())
