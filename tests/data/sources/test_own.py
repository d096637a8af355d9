"""Your own images in folders and archives; image lists are in `test_own_listing`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stablenet.data.columns import Columns
from stablenet.data.sources import SOURCES, read_source
from stablenet.data.sources.own import open_own
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
    with pytest.raises(UserError, match="empty is empty: expected class/image"):
        read_source("folder", tmp_path / "empty")


@pytest.mark.parametrize("wrapped", [False, True])
def test_classes_alone_have_no_contexts(
    wrapped: bool, write_files: Callable[..., Path], zip_folder: Callable[..., Path]
) -> None:
    root = write_files(["cat/1.png", "cat/2.png", "dog/1.png"])
    table = open_own(zip_folder(root) if wrapped else root)
    assert (table.classes, table.domains, table.contexts) == (("cat", "dog"), ("all",), ())
    assert list(table.rows["id"]) == ["cat/1.png", "cat/2.png", "dog/1.png"]
    assert table.describe() == "3 images in 2 classes, no contexts, no given split"
    assert table.title == "source"


@pytest.mark.parametrize("prefix", ["", "deep/"])
@pytest.mark.parametrize(
    ("files", "contexts"),
    [
        (["train/cat/1.png", "train/dog/1.png", "Val/cat/1.png", "test/dog/1.png"], ()),
        (["training/n/cat/1.png", "training/s/dog/1.png", "valid/n/cat/1.png", "Testing/n/dog/1.png"], ("n", "s")),
    ],
)
def test_folders_give_a_split(
    prefix: str, files: list[str], contexts: tuple[str, ...], write_files: Callable[..., Path]
) -> None:
    root = write_files(prefix + file for file in files)
    table = open_own(root)
    assert (table.classes, table.contexts) == (("cat", "dog"), contexts)
    assert table.given_parts == {"train": 2, "validation": 1, "test": 1}
    assert table.describe_parts() == "train 2, validation 1, test 1"
    parts = dict(zip(table.rows["id"], table.rows["part"], strict=True))
    assert [parts[file] for file in files] == ["train", "train", "validation", "test"]
    assert table.open_bytes(table.rows["path"][0])
    ignored = open_own(root, part="none")
    assert ignored.given_parts == {}
    assert set(ignored.rows["id"]) == set(files)


def test_what_only_looks_like_a_split_is_none(write_files: Callable[..., Path], tmp_path: Path) -> None:
    vehicles = open_own(write_files(["train/1.png", "bus/1.png"]))
    assert (vehicles.classes, vehicles.given_parts) == (("bus", "train"), {})
    for label in ("0", "1", "2"):
        (tmp_path / "digits" / label).mkdir(parents=True)
        (tmp_path / "digits" / label / "a.png").write_bytes(b"a")
    assert open_own(tmp_path / "digits").classes == ("0", "1", "2")


def test_a_split_without_class_folders_is_refused(write_files: Callable[..., Path]) -> None:
    root = write_files(["train/cat/1.png", "train/dog/1.png", "test/1.png"])
    with pytest.raises(UserError, match=r"1 images in .* are not at part/class/image, such as test/1\.png: move them"):
        open_own(root)


def test_folders_name_their_own_classes(write_files: Callable[..., Path], tmp_path: Path) -> None:
    root = write_files(FILES)
    with pytest.raises(UserError, match="the names of folders are its classes and contexts; leave label out"):
        open_own(root, label="species")
    with pytest.raises(UserError, match="does not exist: give a folder of images, a CSV file or the name of a source"):
        open_own(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"reads no image list: use the source image-list for l\.csv"):
        read_source("folder", root, listing=Path("l.csv"))
    with pytest.raises(UserError, match="pacs does not read an image list"):
        read_source("pacs", root, Columns(label="species"))


def test_every_source_says_what_it_is() -> None:
    for name in SOURCES:
        source = SOURCES[name]
        assert source.name == name
        assert source.title
        assert source.origin
        assert source.licence
        assert source.layouts
        assert source.counts or name in ("folder", "image-list", "composed")
        assert not source.downloads or source.by_hand
    with pytest.raises(UserError, match="unknown data source 'pcas': did you mean 'pacs'"):
        read_source("pcas", Path())
