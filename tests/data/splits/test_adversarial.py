"""Adversarial: dominant backgrounds that swap classes at test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from stablenet.data.image_list import ComposedList
from stablenet.data.manifest import Manifest
from stablenet.data.sources import read_source
from stablenet.data.splits import split_images
from stablenet.errors import UserError

CLASSES = tuple("0123456789")


@pytest.fixture(scope="module")
def digits() -> ComposedList:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(
        {
            "id": [f"d/{k:05d}" for k in range(5000)],
            "label": rng.integers(0, 10, 5000),
            "subset": ["train"] * 4000 + ["test"] * 1000,
        }
    )
    return ComposedList("mnist-m", CLASSES, tuple(f"b{k:03d}" for k in range(200)), rows, np.array, list)


def check_rules(manifest: Manifest, ratio: float, test_ratio: float) -> None:
    """The paper's three rules, from the rows alone."""
    train = manifest.counts("train") + manifest.counts("validation")
    test = manifest.counts("test")
    assert not ((train > 0) & (test > 0)).to_numpy().any(), "a class has no domain in both parts"
    dominant = train.idxmax()
    assert dominant.is_unique
    assert set(test.idxmax()) == set(dominant), "test's dominant domains are training's"
    assert (test.idxmax() != dominant).all(), "… of other classes"
    for counts, share in ((train, ratio), (test, test_ratio)):
        for name in manifest.classes:
            total = counts[name].sum()
            assert abs(counts[name].max() - share * total) <= 0.5
            rest = counts[name].sort_values(ascending=False).iloc[1:20]
            assert rest.max() - rest.min() <= 1, "the others share the rest evenly"
    training_sets = {name: frozenset(train.index[train[name] > 0]) for name in manifest.classes}
    for name in manifest.classes:
        behind = [other for other in manifest.classes if dominant[other] == test.idxmax()[name]]
        assert set(test.index[test[name] > 0]) <= training_sets[behind[0]], "a class gets another's whole subset"


@pytest.mark.parametrize("ratio", [0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
def test_rules(digits: ComposedList, ratio: float) -> None:
    manifest = split_images(digits, "adversarial", 0, ratio=ratio)
    check_rules(manifest, ratio, ratio)
    train = manifest.counts("train") + manifest.counts("validation")
    assert (train > 0).to_numpy().sum() == 200, "200 domains in 10 subsets of 20"
    assert len(manifest.part("validation")) == 400
    assert len(manifest.part("train")) == 3600
    assert len(manifest.part("test")) == 1000


def test_test_ratio_is_a_parameter(digits: ComposedList) -> None:
    check_rules(split_images(digits, "adversarial", 0, ratio=0.9, test_ratio=0.5), 0.9, 0.5)


def test_digits_stay_in_their_subset_and_keep_their_label(digits: ComposedList) -> None:
    manifest = split_images(digits, "adversarial", 0, train_size=900, test_size=300)
    known = digits.rows.set_index("id")
    origin = known.loc[manifest.rows["id"]].reset_index()
    assert (manifest.rows["label"] == origin["label"]).all()
    assert ((manifest.rows["part"] == "test") == (origin["subset"] == "test")).all()
    assert not manifest.rows["id"].duplicated().any()
    assert manifest.rows["part"].value_counts().to_dict() == {"train": 810, "validation": 90, "test": 300}
    share = known[known["subset"] == "train"]["label"].value_counts(normalize=True)
    drawn = manifest.rows[manifest.rows["part"] != "test"]["label"].value_counts()
    assert ((drawn - 900 * share).abs() < 1).all(), "classes in their own proportions"


def test_places_are_uniform_and_independent(digits: ComposedList) -> None:
    rows = split_images(digits, "adversarial", 0).rows
    assert rows["u"].between(0, 65535).all()
    assert rows["v"].between(0, 65535).all()
    for column in ("u", "v"):
        shares = np.bincount(rows[column] // 8192, minlength=8) / len(rows)
        assert np.abs(shares - 1 / 8).max() < 0.02
    assert abs(np.corrcoef(rows["u"], rows["v"])[0, 1]) < 0.05
    assert abs(np.corrcoef(rows["u"], rows["domain"])[0, 1]) < 0.05


def test_random_draws_from_all_backgrounds_for_both_parts(digits: ComposedList) -> None:
    manifest = split_images(digits, "adversarial", 0, ratio="random")
    for part in ("train", "test"):
        counts = manifest.counts(part).sum(axis=1)
        assert (counts > 0).mean() > 0.98
        assert counts.max() < 8 * counts.mean()
    assert "dominant" not in manifest.parameters
    fewer = split_images(digits, "adversarial", 0, ratio="random", backgrounds=7)
    assert fewer.rows["domain"].nunique() == 7


def test_background_pool_is_a_parameter(digits: ComposedList) -> None:
    manifest = split_images(digits, "adversarial", 0, ratio=0.8, backgrounds=40)
    assert manifest.rows["domain"].nunique() == 40
    train = manifest.counts("train") + manifest.counts("validation")
    assert (train > 0).sum().tolist() == [4] * 10
    uneven = split_images(digits, "adversarial", 0, ratio=0.8, backgrounds=25)
    assert sorted(((uneven.counts("train") + uneven.counts("validation")) > 0).sum()) == [2] * 5 + [3] * 5


def test_seeds(digits: ComposedList) -> None:
    first = split_images(digits, "adversarial", 0)
    assert first.hash == split_images(digits, "adversarial", 0).hash
    assert split_images(digits, "adversarial", 1).parameters["dominant"] != first.parameters["dominant"]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"ratio": 1.0}, r"ratio must be a number \(above 0 and below 1\) or \'random\', got 1\.0"),
        ({"test_ratio": 0.0}, r"test_ratio must be above 0 and below 1, got 0\.0"),
        ({"ratio": "rnd"}, "or 'random', got 'rnd'"),
        ({"ratio": "random", "test_ratio": 0.5}, "test_ratio must be left out"),
        ({"train_size": 4001}, "4001 train images were asked for: mnist-m has 4000"),
        ({"test_size": 0}, "test_size must be at least 1, got 0"),
        ({"backgrounds": 201}, "201 backgrounds were asked for: mnist-m has 200"),
        ({"backgrounds": 19}, "19 backgrounds are too few"),
        ({"validation": -0.1}, "validation must be at least 0"),
    ],
)
def test_mistakes(digits: ComposedList, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        split_images(digits, "adversarial", 0, **parameters)


def test_images_do_not_fit(digits: ComposedList) -> None:
    with pytest.raises(UserError, match="the split classic needs images in domains; mnist-m has digits"):
        split_images(digits, "classic", 0, target="b000")


def test_full_mnist_m(data_folder: Path) -> None:
    manifest = split_images(read_source("mnist-m", data_folder), "adversarial", 0, ratio=0.9, train_size=6000)
    check_rules(manifest, 0.9, 0.9)
    assert len(manifest.part("test")) == 10_000
    assert manifest.hash == "0a85dff386f5ae16e1125aa310d49c821dd84729a745c0ee5f5656a7d5f62e25"


def test_embedded_goes_the_same_way() -> None:
    manifest = split_images(read_source("embedded", None), "adversarial", 0)
    check_rules(manifest, 0.9, 0.9)
    assert len(manifest.domains) >= 100
