"""Leave one domain out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stablenet.data.image_list import ImageList
from stablenet.data.splits import split_images
from stablenet.errors import UserError


def test_pacs_holds_ten_percent_and_leaves_the_target_whole(pacs: ImageList) -> None:
    manifest = split_images(pacs, "classic", 0, target="photo")
    source = 9991 - 1670
    sizes = {part: len(manifest.part(part)) for part in ("train", "validation", "test", "test_rest")}
    assert sizes == {"train": source - 832, "validation": 832, "test": 1670, "test_rest": 0}
    assert set(manifest.part("test")["domain"]) == {pacs.domains.index("photo")}
    assert pacs.domains.index("photo") not in set(manifest.rows[manifest.rows["part"] != "test"]["domain"])
    held, kept = manifest.counts("validation"), manifest.counts("train")
    assert ((held - 0.1 * (held + kept)).abs() < 1).to_numpy().all(), "stratified by domain and class"
    assert manifest.parameters == {"target": "photo", "validation": 0.1, "published": False}


def test_vlcs_holds_thirty_percent(vlcs: ImageList) -> None:
    manifest = split_images(vlcs, "classic", 0, target="sun")
    assert len(manifest.part("validation")) == round(0.3 * (1415 + 2656 + 3376))
    assert len(manifest.part("test")) == 3282


def test_published_divisions_are_taken_as_they_are(pacs: ImageList) -> None:
    lists = ["crossval" if k % 10 == 3 else "train" for k in range(len(pacs.rows))]
    table = replace(pacs, rows=pacs.rows.assign(subset=lists))
    manifest = split_images(table, "classic", 0, target="photo")
    listed = table.rows[(table.rows["subset"] == "crossval") & (table.rows["domain"] != 2)]
    assert set(manifest.part("validation")["id"]) == set(listed["id"])
    assert manifest.parameters["published"] is True
    assert split_images(table, "classic", 5, target="photo").rows.equals(manifest.rows), "nothing is drawn"
    drawn = split_images(table, "classic", 0, target="photo", validation=0.1)
    assert drawn.rows.equals(split_images(pacs, "classic", 0, target="photo").rows)


def test_vlcs_folders_hold_out_their_test_subset(vlcs: ImageList) -> None:
    folders = ["test" if k % 10 < 3 else ("crossval" if k % 10 == 3 else "train") for k in range(len(vlcs.rows))]
    table = replace(vlcs, rows=vlcs.rows.assign(subset=folders))
    manifest = split_images(table, "classic", 0, target="sun")
    listed = table.rows[(table.rows["subset"] == "test") & (table.rows["domain"] != 3)]
    assert set(manifest.part("validation")["id"]) == set(listed["id"])


def test_seeds_and_hashes(pacs: ImageList) -> None:
    first = split_images(pacs, "classic", 0, target="photo")
    assert split_images(pacs, "classic", 0, target="photo").hash == first.hash
    assert first.hash == "25000bd33112f16d7fd9e08a47125c1d2856083306453a06b3f90d5e0be2b4ad", (
        "another machine must find the same"
    )
    assert split_images(pacs, "classic", 1, target="photo").hash != first.hash


def test_one_image_less_leaves_the_others_where_they_were(pacs: ImageList) -> None:
    first = split_images(pacs, "classic", 0, target="photo").part("validation")
    fewer = replace(pacs, rows=pacs.rows.drop(index=pacs.rows.index[5]).reset_index(drop=True))
    second = split_images(fewer, "classic", 0, target="photo").part("validation")
    assert len(set(first["id"]) ^ set(second["id"])) <= 3


def test_mistakes(pacs: ImageList) -> None:
    with pytest.raises(UserError, match="unknown domain of pacs 'foto': did you mean 'photo'"):
        split_images(pacs, "classic", 0, target="foto")
    with pytest.raises(UserError, match="needs a target: one of art_painting, cartoon, photo, sketch"):
        split_images(pacs, "classic", 0)
    with pytest.raises(UserError, match=r"validation must be at least 0 and below 1, got 1\.5"):
        split_images(pacs, "classic", 0, target="photo", validation=1.5)
    with pytest.raises(UserError, match="the split classic has no parameter ratio: it has target, validation"):
        split_images(pacs, "classic", 0, target="photo", ratio="5:1:1")
    with pytest.raises(UserError, match="unknown split 'clasic': did you mean 'classic'"):
        split_images(pacs, "clasic", 0)
    with pytest.raises(UserError, match="needs digits and backgrounds"):
        split_images(pacs, "adversarial", 0)
