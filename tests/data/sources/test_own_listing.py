"""Your own images in an image list: columns, paths, given splits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from stablenet.data.columns import Columns
from stablenet.data.sources import read_source
from stablenet.data.sources.own import open_own
from stablenet.errors import UserError


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
    table = read_source("image-list", file)
    assert table.classes == ("9", "10"), "numbers in the order of their value"
    assert table.domains == ("NA", "n", "s")
    assert list(table.rows["id"]) == ["NA.png", "x/a.png", "x/b.png"]
    assert list(table.rows["label"]) == [1, 0, 1]
    assert list(table.rows["domain"]) == [0, 1, 2]
    assert table.open_bytes("x/a.png") == (root / "x/a.png").read_bytes()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,species\nx.png,1\n", "no column label or class or y: it has path, species; name the one with the label"),
        ("path,label,domain\n", "has no rows: expected one per image"),
        ("path,label,domain\nx.png,,a\n", "1 of 1 rows lack a path, label or context, first in row 1"),
        ("path,label\n../x.png,1\n", r"1 file listed in .* not found: x\.png; sought in "),
        ("path,label\nempty.png,1\n", r"empty files listed in .*: empty\.png"),
        ("path,label,domain\nx.png,1,a\ny.png,1,a\nz.png,1,a\n", r"2 files listed in .* not found: y\.png, z\.png"),
        ("path,label,domain\nx.png,1,a\nx.png,1,b\n", "occur more than once"),
    ],
)
def test_listing_mistakes(text: str, message: str, write_files: Callable[..., Path]) -> None:
    root = write_files(["x.png"])
    (root / "empty.png").touch()
    (root / "list.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        read_source("image-list", root / "list.csv")


def test_not_a_table(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected a \.csv, \.tsv or \.parquet file"):
        read_source("image-list", tmp_path)
    (tmp_path / "x.parquet").write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot be read as a table"):
        read_source("image-list", tmp_path / "x.parquet")


def write_list(file: Path, *lines: str) -> Path:
    file.write_text("\n".join(lines) + "\n")
    return file


def test_columns_are_found_by_usual_names_or_named(write_files: Callable[..., Path]) -> None:
    root = write_files(["a.png", "b.png"])
    usual = open_own(write_list(root / "metadata.csv", "Split,y,File_Name", "0,x,a.png", "2,y,b.png"))
    assert (usual.classes, usual.contexts) == (("x", "y"), ())
    assert usual.given_parts == {"train": 1, "test": 1}
    assert usual.title == "metadata"
    file = write_list(root / "own.csv", "image,species,site,fold", "a.png,x,n,train", "b.png,y,s,TEST")
    named = read_source("image-list", file, Columns(path="image", label="species", context="site", part="fold"))
    assert named.domains == ("n", "s")
    assert list(named.rows["part"]) == ["train", "test"]
    assert open_own(file, path="image", label="species").given_parts == {}
    with pytest.raises(UserError, match="unknown column 'place'"):
        open_own(file, path="image", label="species", context="place")


@pytest.mark.parametrize("column", ["part", "split", "subset"])
def test_parts_have_many_spellings(column: str, write_files: Callable[..., Path]) -> None:
    spellings = ["train", "TRAINING", "0", "val", "valid", "Validation", "1", "test", "2", "Testing"]
    root = write_files([f"{k}.png" for k in range(10)])
    file = write_list(
        root / "l.csv", f"path,label,{column}", *(f"{k}.png,a,{name}" for k, name in enumerate(spellings))
    )
    assert open_own(file).given_parts == {"train": 3, "validation": 4, "test": 3}
    assert open_own(file, part="none").given_parts == {}


def test_a_column_of_something_else_is_no_split_and_says_so(write_files: Callable[..., Path]) -> None:
    root = write_files(["a.png", "b.png"])
    file = write_list(root / "l.csv", "path,label,part", "a.png,x,wing", "b.png,y,train")
    table = open_own(file)
    assert table.given_parts == {}
    assert table.notes[0].startswith("'wing' in the column part is not a part of a split (train, training, 0, ")
    with pytest.raises(UserError, match="'wing' in the column part is not a part of a split"):
        open_own(file, part="part")


def test_paths_begin_at_root_or_beside_the_list(write_files: Callable[..., Path], tmp_path: Path) -> None:
    root = write_files(["x/a.png", "x/b.png"])
    apart = write_list(tmp_path / "l.csv", "path,label", "x/a.png,1", "x/b.png,2")
    assert open_own(apart, root=root).root == root
    assert read_source("image-list", root, listing=apart).root == root
    beside = write_list(root / "l.csv", "path,label", "x/a.png,1", "x/b.png,2")
    assert open_own(beside, root=tmp_path).root == root, "the folder of other data, as STABLENET_DATA may be"
    with pytest.raises(UserError, match=r"2 files listed in .* not found: x/a\.png, x/b\.png; sought in"):
        open_own(apart)


def test_absolute_paths_and_relative_ones_give_the_same_ids(write_files: Callable[..., Path], tmp_path: Path) -> None:
    root = write_files(["x/a.png", "x/b.png"])
    lines = (f"{root}/x/a.png,1", f"{root}/x/b.png,2")
    for file in (root / "l.csv", tmp_path / "deep" / "l.csv"):
        file.parent.mkdir(exist_ok=True)
        table = open_own(write_list(file, "path,label", *lines))
        assert [(table.root / path).resolve() for path in table.rows["path"]] == [root / "x/a.png", root / "x/b.png"]
        assert table.open_bytes(table.rows["path"][0]) == (root / "x/a.png").read_bytes()
    beside = open_own(write_list(root / "l.csv", "path,label", *lines))
    assert list(beside.rows["id"]) == ["x/a.png", "x/b.png"]
    outside = open_own(write_list(tmp_path / "deep" / "l.csv", "path,label", "../source/x/a.png,1", lines[1]))
    assert list(outside.rows["id"]) == ["a.png", "b.png"], "the same wherever the images lie"


def test_other_files_may_lie_beside_a_list(write_files: Callable[..., Path]) -> None:
    root = write_files(["a.png", "b.png"])
    table = open_own(write_list(root / "l.csv", "path,label", "a.png,1", "b.png,2"))
    assert not table.contains(root / "splits" / "m.tsv")
    assert table.contains(root / "a.png")
    (root / "l.csv").unlink()
    (root / "c").mkdir()
    (root / "a.png").rename(root / "c" / "a.png")
    (root / "b.png").unlink()
    assert open_own(root).contains(root / "splits" / "m.tsv")
