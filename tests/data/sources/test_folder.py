"""Folders and archives seen alike, and what is wrong with them."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from stablenet.data.sources.folder import find_tree, fold, list_members, match_names
from stablenet.errors import UserError

FILES = ["deep/set/a/1.png", "deep/set/a/2.JPG", "deep/set/b/3.webp", "deep/set/b/read.txt", "deep/set/.hidden/4.png"]


def begins(_: str, names: set[str]) -> bool:
    return {"a", "b"} <= names


def test_folder_and_archive_give_the_same_tree(
    write_files: Callable[..., Path], zip_folder: Callable[..., Path]
) -> None:
    root = write_files(FILES)
    (root / "deep/set/empty").mkdir()
    folder = find_tree(root, "set", begins, "a and b")
    packed = find_tree(zip_folder(root), "set", begins, "a and b")
    assert folder.files == packed.files == ("a/1.png", "a/2.JPG", "b/3.webp", "b/read.txt")
    assert folder.images == ["a/1.png", "a/2.JPG", "b/3.webp"]
    assert folder.folders == packed.folders == ("a", "b", "empty")
    assert (folder.root, folder.prefix) == (root / "deep/set", "")
    assert packed.prefix == "deep/set/"


def test_an_archive_beside_other_things_is_found(write_files: Callable[..., Path], tmp_path: Path) -> None:
    root = write_files(["other/x.png"])
    with zipfile.ZipFile(root / "Set-v1.zip", "w") as archive:
        archive.writestr("a/1.png", b"")
        archive.writestr("b/1.png", b"")
    assert find_tree(root, "set", begins, "").root == root / "Set-v1.zip"
    (root / "set2.zip").write_bytes((root / "Set-v1.zip").read_bytes())
    with pytest.raises(UserError, match="contains 2 archives for set"):
        find_tree(root, "set", begins, "")


def test_what_is_not_there_is_described(write_files: Callable[..., Path], tmp_path: Path) -> None:
    root = write_files(["other/x.png"])
    with pytest.raises(UserError, match=r"set was not found in .*, which contains other: expected a and b"):
        find_tree(root, "set", begins, "a and b")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="which contains nothing"):
        find_tree(tmp_path / "empty", "set", begins, "")


def test_path_traversal_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "set.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("a/1.png", b"")
        opened.writestr("b/../../../1.png", b"")
    with pytest.raises(UserError, match=r"unsafe path 'b/\.\./\.\./\.\./1\.png'"):
        find_tree(archive, "set", begins, "")
    assert [file.name for file in tmp_path.iterdir()] == ["set.zip"]


def test_broken_archives_are_named(tmp_path: Path) -> None:
    (tmp_path / "set.zip").write_bytes(b"PK\x03\x04 half an archive")
    with pytest.raises(UserError, match="not a readable zip archive"):
        list_members(tmp_path / "set.zip")


def test_a_link_back_up_the_tree_ends(write_files: Callable[..., Path]) -> None:
    root = write_files(["a/1.png", "b/2.png"])
    (root / "b" / "loop").symlink_to(root, target_is_directory=True)
    assert find_tree(root, "set", begins, "").images == ["a/1.png", "b/2.png"]


def test_names_match_whatever_their_spelling() -> None:
    found = match_names("domains", ["Art Painting", "photo"], {"art_painting": ("art",), "photo": ()}, Path("x"))
    assert found == {"Art Painting": "art_painting", "photo": "photo"}
    assert fold("Art-painting_") == "artpainting"
    with pytest.raises(UserError, match=r"x lacks the domains photo: found art and the unknown foto; rename"):
        match_names("domains", ["art", "foto"], {"art_painting": ("art",), "photo": ()}, Path("x"))
    with pytest.raises(UserError, match="x contains the unknown domains foto: expected only photo"):
        match_names("domains", ["photo", "foto"], {"photo": ()}, Path("x"))
    with pytest.raises(UserError, match="under two names: art, Art_Painting"):
        match_names("domains", ["art", "Art_Painting"], {"art_painting": ("art",)}, Path("x"))
