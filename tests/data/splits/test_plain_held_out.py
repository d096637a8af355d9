"""Held out: a share of every class and context, for images without contexts or a target."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stablenet.data.check import check_manifest
from stablenet.data.image_list import ImageList
from stablenet.data.splits import split_images
from stablenet.errors import UserError


def test_every_class_in_every_context_gives_its_share(make_table: Callable[..., ImageList]) -> None:
    table = make_table("own", ("cat", "dog"), {"north": (50, 20), "south": (10, 100)})
    manifest = split_images(table, "held-out", 1, test=0.3, validation=0.2)
    test, held = manifest.counts("test"), manifest.counts("validation")
    assert test.to_numpy().tolist() == [[15, 6], [3, 30]]
    assert held.to_numpy().sum() == round(0.2 * 126)
    assert (manifest.counts("train") + held + test).to_numpy().tolist() == [[50, 20], [10, 100]]
    assert all(finding.holds for finding in check_manifest(manifest, table))


def test_seeds_draw_others_and_one_seed_the_same(make_table: Callable[..., ImageList]) -> None:
    table = make_table("own", ("cat", "dog"), {"all": (40, 40)})
    first = split_images(table, "held-out", 0)
    assert first.hash == split_images(table, "held-out", 0).hash
    drawn = [set(split_images(table, "held-out", seed).part("test")["id"]) for seed in range(3)]
    assert drawn[0] != drawn[1] != drawn[2]
    assert [len(first.part(part)) for part in ("train", "validation", "test")] == [58, 6, 16]


def test_the_check_finds_a_test_part_of_one_class(make_table: Callable[..., ImageList]) -> None:
    table = make_table("own", ("cat", "dog"), {"all": (40, 40)})
    manifest = split_images(table, "held-out", 0)
    rows = manifest.rows.copy()
    cats, dogs = ((rows["label"] == label) & (rows["part"] == part) for label, part in ((0, "train"), (1, "test")))
    rows.loc[rows.index[cats][:4], "part"] = "test"
    rows.loc[rows.index[dogs][:4], "part"] = "train"
    broken = type(manifest)(**{**manifest.__dict__, "rows": rows})
    assert "test holds 20 %" in {finding.name for finding in check_manifest(broken) if not finding.holds}


def test_too_few_images_are_named(make_table: Callable[..., ImageList]) -> None:
    table = make_table("own", ("cat", "dog"), {"all": (1, 1)})
    with pytest.raises(UserError, match=r"own has too few images of (cat|dog)"):
        split_images(table, "held-out", 0, test=0.5)
    with pytest.raises(UserError, match="test must be above 0 and below 1"):
        split_images(table, "held-out", 0, test=1.0)


@pytest.mark.parametrize("split", ["classic", "unbalanced", "flexible", "unbalanced+flexible"])
def test_one_domain_cannot_be_left_out(split: str, make_table: Callable[..., ImageList]) -> None:
    table = make_table("own", ("cat", "dog"), {"all": (40, 40)})
    parameters = {} if "flexible" in split else {"target": "all"}
    with pytest.raises(UserError, match=r"own has only one domain, all: .*held-out needs no domains"):
        split_images(table, split, 0, **parameters)
