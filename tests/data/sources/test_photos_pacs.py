"""PACS: folders, lists, archives; names that differ; the real thing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stablenet.data.sources import SOURCES, read_source
from stablenet.errors import UserError

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def layout(suffix: str = ".jpg", prefix: str = "") -> list[str]:
    return [f"{prefix}{d}/{c}/pic_{k}{suffix}" for d in DOMAINS for c in CLASSES for k in range(3)]


def snapshot(root: Path) -> list[tuple[str, int, int]]:
    return sorted((str(f), f.stat().st_mtime_ns, f.stat().st_size) for f in root.rglob("*"))


@pytest.mark.parametrize("prefix", ["", "kfold/", "some/PACS/"])
def test_folders_and_archives_give_the_same_ids(
    prefix: str, write_files: Callable[..., Path], zip_folder: Callable[..., Path]
) -> None:
    root = write_files(layout(prefix=prefix))
    before = snapshot(root)
    table = read_source("pacs", root)
    packed = read_source("pacs", zip_folder(root))
    assert list(table.rows["id"]) == list(packed.rows["id"]) == sorted(layout(suffix=""))
    assert (table.domains, table.classes) == (DOMAINS, CLASSES)
    row = table.rows.set_index("id").loc["photo/horse/pic_2"]
    assert (row["label"], row["domain"]) == (4, 2)
    for path, other in zip(table.rows["path"], packed.rows["path"], strict=True):
        assert table.open_bytes(path) == packed.open_bytes(other)
    assert snapshot(root) == before, "something was written into the source folder"


def test_an_id_does_not_depend_on_the_encoding(write_files: Callable[..., Path]) -> None:
    assert list(read_source("pacs", write_files(layout(".webp"))).rows["id"]) == sorted(layout(suffix=""))


def test_original_lists_give_the_published_division(write_files: Callable[..., Path]) -> None:
    root = write_files(layout(prefix="kfold/", suffix=".png"))
    (root / "kfold/lists").mkdir()
    for domain in DOMAINS:
        lines = [f"{domain}/{c}/pic_{k}.jpg {n}" for n, c in enumerate(CLASSES, 1) for k in range(3)]
        for name, chosen in (("train", lines[::2]), ("crossval", lines[1::2]), ("test", lines)):
            (root / f"kfold/lists/{domain}_{name}_kfold.txt").write_text("\n".join(chosen) + "\n")
    rows = read_source("pacs", root).rows.set_index("id")
    assert rows.loc["photo/dog/pic_0", "subset"] == "train"
    assert rows.loc["photo/dog/pic_1", "subset"] == "crossval"
    assert set(rows["subset"]) == {"train", "crossval"}
    (root / "kfold/lists/photo_train_kfold.txt").unlink()
    with pytest.raises(UserError, match="do not contain photo/dog/pic_0"):
        read_source("pacs", root)


def test_differing_counts_are_noted(write_files: Callable[..., Path]) -> None:
    table = read_source("pacs", write_files(layout()))
    assert "pacs: photo has 21 images instead of the published 1670" in table.notes
    assert len(table.notes) == 4


def test_what_is_missing_or_named_differently_is_said(write_files: Callable[..., Path], tmp_path: Path) -> None:
    root = write_files(layout())
    (root / "photo").rename(root / "foto")
    with pytest.raises(UserError, match=r"lacks the domains photo: .* unknown foto"):
        read_source("pacs", root)
    (root / "foto").rename(root / "photo")
    (root / "photo/dog").rename(root / "photo/hound")
    with pytest.raises(UserError, match=r"lacks the classes dog: .* unknown hound"):
        read_source("pacs", root)
    (root / "photo/hound").rename(root / "photo/dog")
    for name in ("photo/dog", "sketch/house"):
        for file in (root / name).iterdir():
            file.unlink()
    with pytest.raises(UserError, match=r"1 class folders in .* contain no images: photo/dog"):
        read_source("pacs", root)
    with pytest.raises(UserError, match="does not exist"):
        read_source("pacs", tmp_path / "nowhere")
    with pytest.raises(UserError, match="pacs needs a folder or archive"):
        read_source("pacs", None)


def test_full_pacs_has_the_published_counts(data_folder: Path) -> None:
    table = read_source("pacs", data_folder)
    assert table.notes == ()
    assert len(table.rows) == sum(SOURCES["pacs"].counts.values()) == 9991
    counts = table.rows.groupby(["domain", "label"]).size().unstack().to_numpy().tolist()
    assert counts == [
        [379, 255, 285, 184, 201, 295, 449],
        [389, 457, 346, 135, 324, 288, 405],
        [189, 202, 182, 186, 199, 280, 432],
        [772, 740, 753, 608, 816, 80, 160],
    ]
