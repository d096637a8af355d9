"""NICO: two trees, contexts of their own for every class."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stablenet.data.sources import read_source
from stablenet.data.sources.photos import NICO_COUNTS
from stablenet.errors import UserError


def layout(animal: str = "Animal", vehicle: str = "Vehicle") -> list[str]:
    paths = []
    for tree, kind in ((animal, "animal"), (vehicle, "vehicle")):
        for number, name in enumerate(NICO_COUNTS[kind]):
            contexts = ["on grass", *(f"{name} context {k}" for k in range(8 + number % 2))]
            paths += [f"NICO/{tree}/{name}/{context}/{k}.jpg" for context in contexts for k in range(2)]
    return paths


@pytest.mark.parametrize(("animal", "vehicle"), [("Animal", "Vehicle"), ("animals", "vehicles")])
def test_both_trees(animal: str, vehicle: str, write_files: Callable[..., Path]) -> None:
    table = read_source("nico", write_files(layout(animal, vehicle)))
    assert len(table.classes) == 19
    assert list(table.classes) == sorted(table.classes)
    assert table.domains.count("on grass") == 1
    row = table.rows.set_index("id").loc[f"{vehicle}/train/on grass/1.jpg"]
    assert (table.classes[row["label"]], table.domains[row["domain"]]) == ("train", "on grass")
    contexts = table.rows.groupby("label")["domain"].nunique()
    assert set(contexts) == {9, 10}


def test_one_tree_by_name(write_files: Callable[..., Path], zip_folder: Callable[..., Path]) -> None:
    root = write_files(layout())
    animals = read_source("nico-animal", zip_folder(root))
    assert animals.classes == tuple(sorted(NICO_COUNTS["animal"]))
    vehicles = read_source("nico-vehicle", root)
    assert len(animals.rows) + len(vehicles.rows) == len(read_source("nico", root).rows)


def test_a_missing_tree_class_or_image_is_said(write_files: Callable[..., Path]) -> None:
    root = write_files(layout())
    (root / "NICO/Vehicle").rename(root / "NICO/Machines")
    with pytest.raises(UserError, match="lacks the tree vehicle"):
        read_source("nico", root)
    assert len(read_source("nico-animal", root).classes) == 10
    for file in (root / "NICO/Animal/cow/on grass").iterdir():
        file.unlink()
    with pytest.raises(UserError, match="contain no images: Animal/cow/on grass"):
        read_source("nico-animal", root)
    (root / "NICO/Animal/cow").rename(root / "NICO/Animal/bull")
    with pytest.raises(UserError, match=r"lacks the classes cow: .* unknown bull"):
        read_source("nico-animal", root)


def test_published_counts_add_up() -> None:
    assert sum(NICO_COUNTS["animal"].values()) == 12_811
    assert sum(NICO_COUNTS["vehicle"].values()) == 11_403
