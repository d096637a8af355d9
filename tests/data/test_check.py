"""`check_manifest` holds for every split and finds every broken promise; identical files across domains are found."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from stablenet.data.check import check_manifest, dominant_share, find_duplicates, fingerprint_files
from stablenet.data.image_list import ComposedList, ImageList
from stablenet.data.manifest import Manifest
from stablenet.data.prepare import prepare
from stablenet.data.sources import read_source
from stablenet.data.splits import split_images


@pytest.mark.parametrize("packed", [False, True])
def test_copies_across_domains_and_classes_are_found(
    packed: bool, write_files: Callable[..., Path], zip_folder: Callable[..., Path], tmp_path: Path
) -> None:
    root = write_files([f"{d}/{c}/{k}.png" for d in ("n", "s") for c in ("cat", "dog") for k in range(3)])
    (root / "s/cat/1.png").write_bytes((root / "n/cat/0.png").read_bytes())  # across domains
    (root / "n/dog/2.png").write_bytes((root / "n/cat/2.png").read_bytes())  # across classes
    (root / "s/dog/1.png").write_bytes((root / "s/dog/0.png").read_bytes())  # neither
    table = read_source("folder", zip_folder(root) if packed else root)
    assert isinstance(table, ImageList)
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


@pytest.fixture(scope="module")
def digits() -> ComposedList:
    rows = pd.DataFrame(
        {
            "id": [f"d/{k:05d}" for k in range(3000)],
            "label": np.arange(3000) % 10,
            "subset": ["train"] * 2000 + ["test"] * 1000,
        }
    )
    return ComposedList("mnist-m", tuple("0123456789"), tuple(f"b{k:03d}" for k in range(200)), rows, np.array, list)


def failing(manifest: Manifest, table: ImageList | ComposedList | None = None) -> set[str]:
    return {finding.name for finding in check_manifest(manifest, table) if not finding.holds}


def edit(manifest: Manifest, where: pd.Series, **values: object) -> Manifest:
    rows = manifest.rows.copy()
    for column, value in values.items():
        rows.loc[where, column] = value
    return replace(manifest, rows=rows)


def first(manifest: Manifest, part: str, number: int = 1) -> pd.Series:
    """Mask of the first rows of a part."""
    mask = manifest.rows["part"] == part
    return mask & (mask.cumsum() <= number)


@pytest.mark.parametrize(
    ("split", "parameters"),
    [
        ("classic", {"target": "photo"}),
        ("unbalanced", {"target": "photo"}),
        ("unbalanced", {"target": "sketch", "ratio": "2:1:1"}),
        ("unbalanced", {"target": "photo", "ratio": "7:1", "allow_shortfall": True}),
        ("unbalanced+flexible", {"ratio": "5:1:1"}),
        ("flexible", {}),
        ("flexible", {"published": False}),
        ("unbalanced+flexible", {"published": False, "ratio": "6:1", "allow_shortfall": True}),
    ],
)
def test_every_split_keeps_its_promises(pacs: ImageList, split: str, parameters: dict[str, object]) -> None:
    manifest = split_images(pacs, split, 3, **parameters)
    assert failing(manifest, pacs) == set()


def test_vlcs_keeps_its_promises(vlcs: ImageList) -> None:
    for target, ratio in zip(vlcs.domains, ("5:1:1", "3:1:1", "3:1:1", "2:1:1"), strict=True):
        assert failing(split_images(vlcs, "unbalanced", 0, target=target, ratio=ratio), vlcs) == set()
    assert failing(split_images(vlcs, "flexible", 0), vlcs) == set()


@pytest.mark.parametrize("ratio", [0.5, 0.95, "random"])
def test_adversarial_keeps_its_promises(digits: ComposedList, ratio: float | str) -> None:
    assert failing(split_images(digits, "adversarial", 0, ratio=ratio), digits) == set()


def test_leakage_between_parts_is_found(pacs: ImageList) -> None:
    manifest = split_images(pacs, "unbalanced", 0, target="photo")
    leaked = manifest.part("test").head(1).assign(part="train")
    broken = replace(manifest, rows=pd.concat([manifest.rows, leaked]))
    assert {"no image in two parts", "no image twice", "target domain unseen in training"} <= failing(broken)
    moved = edit(manifest, first(manifest, "test_rest"), part="validation")
    assert "target domain unseen in training" in failing(moved)
    tested = edit(manifest, first(manifest, "train"), part="test")
    assert "target domain unseen in training" in failing(tested)


def test_repeated_rows_are_found(pacs: ImageList) -> None:
    manifest = split_images(pacs, "classic", 0, target="photo")
    broken = replace(manifest, rows=pd.concat([manifest.rows, manifest.part("train").head(1)]))
    assert "no image twice" in failing(broken)


def test_wrong_validation_shares_are_found(pacs: ImageList) -> None:
    manifest = split_images(pacs, "classic", 0, target="photo")
    assert failing(edit(manifest, first(manifest, "train"), part="validation")) == {"validation holds 10 %"}
    rows = manifest.rows.copy()  # as many held out, but all of one class in one domain
    rows.loc[rows["part"] == "validation", "part"] = "train"
    rows.loc[first(replace(manifest, rows=rows), "train", 832), "part"] = "validation"
    assert failing(replace(manifest, rows=rows)) == {"validation holds 10 %"}


def test_wrong_totals_are_found(pacs: ImageList) -> None:
    manifest = split_images(pacs, "unbalanced", 0, target="photo", validation=0.0)
    fewer = replace(manifest, rows=manifest.rows[~first(manifest, "test")])
    assert failing(fewer) == {"published totals"}
    flexible = split_images(pacs, "flexible", 0, validation=0.0)
    fewer = replace(flexible, rows=flexible.rows[~first(flexible, "train")])
    assert failing(fewer) == {"published counts"}


def test_wrong_proportions_are_found(pacs: ImageList) -> None:
    manifest = split_images(pacs, "unbalanced", 0, target="photo", published=False, validation=0.0)
    cartoons = (manifest.rows["domain"] == 1) & (manifest.rows["label"] == 0)
    assert "class proportions of the dominant domain" in failing(edit(manifest, cartoons, label=5))


def test_a_minor_domain_without_an_image_is_found(pacs: ImageList) -> None:
    manifest = split_images(pacs, "unbalanced", 0, target="photo", published=False, validation=0.0)
    without = replace(manifest, rows=manifest.rows[manifest.rows["domain"] != manifest.domains.index("cartoon")])
    findings = {finding.name: finding for finding in check_manifest(without)}
    found = findings["class proportions of the dominant domain"]
    assert not found.holds
    assert found.detail.endswith("; no image of cartoon")


def test_a_flexible_domain_in_both_is_found(pacs: ImageList) -> None:
    manifest = split_images(pacs, "flexible", 0, published=False)
    moved = edit(manifest, first(manifest, "test"), part="train")
    assert "no domain of a class in both training and test" in failing(moved)


def test_a_class_that_leaves_the_ratio_is_found(make_table: Callable[..., ImageList]) -> None:
    table = make_table("mine", ("a", "b"), {d: (60, 60) for d in "pqrs"})  # noqa: C420
    manifest = split_images(table, "unbalanced+flexible", 0, validation=0.0)
    wrong = manifest.parameters | {"dominant": {"a": manifest.parameters["target"]["a"][0], "b": "p"}}
    assert failing(replace(manifest, parameters=wrong)) == {"every class keeps the ratio"}
    fewer = replace(manifest, rows=manifest.rows[~first(manifest, "train")])
    assert failing(fewer) == {"every class keeps the ratio"}


def test_broken_adversarial_rules_are_found(digits: ComposedList) -> None:
    manifest = split_images(digits, "adversarial", 0, ratio=0.9, validation=0.0)
    dominant = manifest.domains.index(manifest.parameters["dominant"]["3"])
    threes = (manifest.rows["label"] == 3) & (manifest.rows["part"] == "train")
    assert failing(edit(manifest, threes, domain=dominant)) == {"dominant ratio in training: 0.9"}
    tested = (manifest.rows["label"] == 3) & (manifest.rows["part"] == "test")
    found = failing(edit(manifest, tested, domain=dominant))
    assert found == {"no domain of a class in both training and test", "dominant ratio at test: 0.9"}
    same = manifest.parameters | {"test_dominant": manifest.parameters["dominant"]}
    assert "dominant backgrounds swapped" in failing(replace(manifest, parameters=same))


def test_a_source_that_changed_is_found(pacs: ImageList) -> None:
    manifest = split_images(pacs, "classic", 0, target="photo")
    fewer = replace(pacs, rows=pacs.rows.drop(index=pacs.rows.index[0]).reset_index(drop=True))
    assert failing(manifest, fewer) == {"the source has these images"}
    relabelled = replace(pacs, rows=pacs.rows.assign(label=(pacs.rows["label"] + 1) % 7))
    assert failing(manifest, relabelled) == {"the source has these images"}
    renamed = replace(pacs, domains=("art", *pacs.domains[1:]))
    assert failing(manifest, renamed) == {"the source has these images"}


def test_an_empty_part_is_found(pacs: ImageList) -> None:
    manifest = split_images(pacs, "classic", 0, target="photo")
    assert "parts filled" in failing(replace(manifest, rows=manifest.rows[manifest.rows["part"] != "test"]))


def test_a_setting_of_ones_own_is_held_to_what_every_split_promises(pacs: ImageList) -> None:
    manifest = replace(split_images(pacs, "classic", 0, target="photo"), split="other", parameters={"mine": 1})
    findings = {finding.name: finding for finding in check_manifest(manifest, pacs)}
    rules = findings.pop("the split's own rules")
    assert rules.holds is None
    assert "other is not one of classic" in rules.detail
    assert all(finding.holds is True for finding in findings.values())
    general = {"no image in two parts", "no image twice", "labels and domains known", "parts filled"}
    assert set(findings) == general | {"the source has these images"}
    leaked = manifest.part("test").head(1).assign(part="train", label=7)
    wrong = failing(replace(manifest, rows=pd.concat([manifest.rows, leaked])))
    assert wrong == {"no image in two parts", "no image twice", "labels and domains known", "the split's own rules"}


def test_dominant_share_by_hand() -> None:
    rows = pd.DataFrame({"id": list("abcde"), "label": [0, 0, 0, 1, 1], "domain": [1, 1, 0, 0, 0], "part": "train"})
    shares = dominant_share(Manifest("s", "classic", {}, 0, ("A", "B"), ("p", "q"), rows), "train")
    assert shares["domain"].tolist() == ["q", "p"]
    assert shares["share"].tolist() == [2 / 3, 1.0]
