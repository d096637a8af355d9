"""VLCS in its published layouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stablenet.data.sources import read_source
from stablenet.errors import UserError

CLASSES = ("bird", "car", "chair", "dog", "person")


def test_domainbed_layout(write_files: Callable[..., Path], zip_folder: Callable[..., Path]) -> None:
    names = ("Caltech101", "LabelMe", "SUN09", "VOC2007")
    root = write_files(f"VLCS/{d}/{c}/{k}.jpg" for d in names for c in CLASSES for k in range(2))
    table = read_source("vlcs", root)
    assert table.domains == ("caltech", "labelme", "pascal", "sun")
    assert table.classes == CLASSES
    rows = table.rows.set_index("id")
    assert tuple(rows.loc["VOC2007/dog/1.jpg", ["label", "domain"]]) == (3, 2)
    assert "subset" not in rows
    assert list(read_source("vlcs", zip_folder(root)).rows["id"]) == list(table.rows["id"])
    assert "vlcs: sun has 10 images instead of the published 3282" in table.notes


def test_train_crossval_test_layout_reads_every_image_once(write_files: Callable[..., Path]) -> None:
    paths = []
    for domain in ("CALTECH", "LABELME", "PASCAL", "SUN"):
        for cls in range(5):
            for subset, size in (("train", 3), ("crossval", 1), ("test", 2)):
                paths += [f"{domain}/{subset}/{cls}/imgs_{k}.jpg" for k in range(size)]
                paths += [f"{domain}/full/{cls}/{subset}_imgs_{k}.jpg" for k in range(size)]
    table = read_source("vlcs", write_files(paths))
    assert len(table.rows) == 4 * 5 * 6
    assert table.rows["subset"].value_counts().to_dict() == {"train": 60, "test": 40, "crossval": 20}
    rows = table.rows.set_index("id")
    assert tuple(rows.loc["SUN/crossval/2/imgs_0.jpg", ["label", "domain", "subset"]]) == (2, 3, "crossval")


def test_full_layout_takes_the_subset_from_the_names(write_files: Callable[..., Path]) -> None:
    domains = ("caltech", "labelme", "pascal", "sun")
    paths = [f"{d}/full/{c}/{s}_imgs_1.jpg" for d in domains for c in range(5) for s in ("train", "crossval", "test")]
    table = read_source("vlcs", write_files(paths))
    assert table.rows["subset"].value_counts().to_dict() == {"train": 20, "test": 20, "crossval": 20}


def test_missing_domain_and_class(write_files: Callable[..., Path]) -> None:
    root = write_files(f"{d}/{c}/1.jpg" for d in ("CALTECH", "LABELME", "PASCAL") for c in CLASSES)
    with pytest.raises(UserError, match="lacks the domains sun"):
        read_source("vlcs", root)
    (root / "SUN").mkdir()
    for cls in CLASSES[1:]:
        (root / "PASCAL" / cls).rename(root / "SUN" / cls) if cls == "car" else None
    with pytest.raises(UserError, match="lacks the classes"):
        read_source("vlcs", root)
