"""Given: the parts as they came, a validation part where there is none, and no other split in their place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stablenet.data.check import check_manifest
from stablenet.data.image_list import ImageList
from stablenet.data.manifest import Manifest
from stablenet.data.splits import choose_split, split_images
from stablenet.errors import UserError

SIZES = {"north": (20, 10), "south": (10, 30)}


@pytest.fixture
def table(make_table: Callable[..., ImageList]) -> ImageList:
    return make_table("own", ("cat", "dog"), SIZES)


def give(table: ImageList, *parts: str) -> ImageList:
    """The parts in turn, image by image."""
    return replace(table, rows=table.rows.assign(part=[parts[k % len(parts)] for k in range(len(table.rows))]))


def ids(manifest: Manifest, part: str) -> set[str]:
    return set(manifest.part(part)["id"])


def test_the_parts_are_those_that_were_given(table: ImageList) -> None:
    given = give(table, "train", "train", "validation", "test")
    manifest = split_images(given, "given", 3)
    for part in ("train", "validation", "test"):
        assert ids(manifest, part) == set(given.rows.loc[given.rows["part"] == part, "id"])
    assert manifest.part("test_rest").empty
    assert all(finding.holds for finding in check_manifest(manifest, given))
    with pytest.raises(UserError, match=r"has 17 validation images of its own: leave validation out"):
        split_images(given, "given", 0, validation=0.2)


def test_validation_is_drawn_from_training_where_none_is_given(table: ImageList) -> None:
    given = give(table, "train", "test")
    manifest = split_images(given, "given", 0, validation=0.2)
    assert ids(manifest, "test") == set(given.rows.loc[given.rows["part"] == "test", "id"])
    assert len(manifest.part("validation")) == 7
    assert ids(manifest, "train").isdisjoint(ids(manifest, "validation"))
    assert all(finding.holds for finding in check_manifest(manifest, given))
    assert ids(split_images(given, "given", 1, validation=0.2), "validation") != ids(manifest, "validation")
    assert manifest.hash == split_images(given, "given", 0, validation=0.2).hash


def test_a_split_without_a_test_part_says_so_and_one_without_training_is_refused(table: ImageList) -> None:
    assert "has no test part" in split_images(give(table, "train", "validation"), "given").notes[0]
    with pytest.raises(UserError, match="leaves no image of own to train on"):
        split_images(give(table, "test"), "given")
    with pytest.raises(UserError, match="own comes with no split: add a column part"):
        split_images(table, "given")


@pytest.mark.parametrize(
    ("split", "parameters"),
    [
        ("classic", {"target": "north"}),
        ("unbalanced", {"target": "north", "ratio": "2:1"}),
        ("flexible", {}),
        ("held-out", {}),
        ("", {"target": "north"}),
    ],
)
def test_no_other_split_ignores_it(split: str, parameters: dict[str, str], table: ImageList) -> None:
    given = give(table, "train", "train", "train", "test")
    with pytest.raises(UserError, match=r"own comes with a split \(train 53, test 17\), which .* would ignore: use"):
        split_images(given, split, 0, **parameters)


def test_the_split_that_fits_is_the_default(table: ImageList) -> None:
    assert choose_split(give(table, "train", "test"), {}) == "given"
    assert choose_split(table, {"target": "north"}) == "classic"
    assert choose_split(table, {}) == "held-out"
    assert split_images(table, "").split == "held-out"


def test_published_subsets_are_no_given_split(vlcs: ImageList) -> None:
    """What the sources of published data call subset is theirs to use."""
    listed = replace(vlcs, rows=vlcs.rows.assign(subset="train"))
    assert listed.given_parts == {}
    assert split_images(listed, "classic", 0, target="sun").split == "classic"
