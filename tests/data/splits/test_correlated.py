"""Correlated: ratios and groups counted from the rows, disjoint parts, placements, and refusals."""

import numpy as np
import pandas as pd
import pytest

from stablenet.data.image_list import CutoutList, ImageList
from stablenet.data.sources import read_source
from stablenet.data.splits import split_images
from stablenet.data.splits.correlated import next_own
from stablenet.errors import UserError

KINDS = {"cat": ("lynx", "puma"), "dog": ("husky", "pug", "boxer")}
PLACES = ("lake", "road", "snow")


def make_list(each=80, below=30, subsets=False):
    """Lists without files: `each` foregrounds of every kind, `below` backgrounds of every place."""
    names = [kind for kinds in KINDS.values() for kind in kinds]
    foregrounds = [
        {"id": f"{c}/{kind}/{k:03d}", "path": "", "label": label, "domain": names.index(kind)}
        for label, (c, kinds) in enumerate(KINDS.items())
        for kind in kinds
        for k in range(each)
    ]
    backgrounds = [
        {"id": f"{place}/{k:03d}", "path": "", "label": 0, "domain": number}
        for number, place in enumerate(PLACES)
        for k in range(below)
    ]
    if subsets:
        backgrounds = [row | {"subset": "test" if row["id"].endswith("1") else "train"} for row in backgrounds]
    return CutoutList(
        "made",
        ImageList("made", None, tuple(KINDS), tuple(names), pd.DataFrame(foregrounds)),
        ImageList("made", None, ("background",), PLACES, pd.DataFrame(backgrounds)),
    )


def count(manifest, *parts):
    """(class, context) → images, from the ids alone."""
    rows = manifest.rows[manifest.rows["part"].isin(parts)]
    context = rows["background"].str.split("/").str[0]
    return rows.groupby([rows["foreground"].str.split("/").str[0], context]).size()


@pytest.mark.parametrize("ratio", [0.6, 0.8, 0.95, 0.99])
def test_ratios_and_balanced_test(ratio):
    manifest = split_images(make_list(), "correlated", 3, ratio=ratio)
    train = count(manifest, "train", "validation")
    for name, own, total in (("cat", "lake", 120), ("dog", "road", 180)):
        assert train[name].sum() == total, "a quarter is kept for the test"
        assert train[name][own] == int(ratio * total + 0.5)
        others = [train[name].get(place, 0) for place in PLACES if place != own]
        assert max(others) - min(others) <= 1
    assert set(count(manifest, "test")) == {13}, "40 cats for three places"
    assert len(count(manifest, "test")) == 6
    assert len(manifest.part("validation")) == 30


def test_halves_share_no_foreground_at_any_seed():
    even, odd = (
        {
            name
            for seed in (0, 1)
            for name in split_images(make_list(), "correlated", seed, half=half).rows["foreground"]
        }
        for half in ("even", "odd")
    )
    assert even
    assert odd
    assert not even & odd
    whole = split_images(make_list(), "correlated", 0)
    assert "half" not in whole.parameters
    assert split_images(make_list(), "correlated", 0, half="odd").parameters["half"] == "odd"


def test_parts_share_no_foreground_and_no_background():
    for table in (make_list(), make_list(subsets=True)):
        for test in ("balanced", "crossed", "swapped"):
            rows = split_images(table, "correlated", 0, test=test).rows
            of_test = rows["part"] == "test"
            for column in ("foreground", "background"):
                assert not set(rows.loc[of_test, column]) & set(rows.loc[~of_test, column])
            assert not rows["id"].duplicated().any()
            assert (rows["label"] == (rows["foreground"].str.startswith("dog"))).all()
            places = rows["background"].str.split("/").str[0].map(PLACES.index)
            assert (rows["domain"] == places).all()
    assert rows.loc[of_test, "background"].str.endswith("1").all()


def test_crossed_puts_every_foreground_into_every_context():
    test = split_images(make_list(), "correlated", 0, test="crossed").part("test")
    assert (test.groupby("foreground")["domain"].nunique() == 3).all()
    assert test.groupby(["label", "domain"]).size().unique().tolist() == [40]
    assert test["id"].tolist() == [f"{f}@{PLACES[d]}" for f, d in zip(test["foreground"], test["domain"], strict=True)]
    assert (test.groupby("foreground")[["u", "v", "scale"]].nunique() == 1).all().all(), "placed alike"


def test_swapped_puts_classes_into_each_others_contexts():
    manifest = split_images(make_list(), "correlated", 0, test="swapped", ratio=0.9)
    test = count(manifest, "test")
    assert test["cat"].to_dict() == {"lake": 2, "road": 36, "snow": 2}
    assert test["dog"].to_dict() == {"lake": 36, "road": 2, "snow": 2}
    assert manifest.parameters["test_dominant"] == {"cat": "road", "dog": "lake"}


def test_the_next_class_with_another_context():
    assert next_own([0, 1, 2]) == [1, 2, 0]
    assert next_own([0, 0, 1]) == [1, 1, 0]
    with pytest.raises(UserError, match="contexts cannot be swapped"):
        next_own([1, 1])


def test_random_contexts_are_uniform_and_independent_of_the_class():
    manifest = split_images(make_list(each=800), "correlated", 0, ratio="random")
    train = count(manifest, "train", "validation").unstack()
    shares = train.div(train.sum(axis=1), axis=0).to_numpy()
    assert np.abs(shares - 1 / 3).max() < 0.05
    assert "dominant" not in manifest.parameters


def test_sizes_kinds_and_own_contexts_are_settings():
    kinds = split_images(make_list(), "correlated", 0, classes="kind", per_class=20, ratio=0.8, validation=0.2)
    assert kinds.classes == ("lynx", "puma", "husky", "pug", "boxer")
    assert kinds.parameters["dominant"] == dict(
        zip(kinds.classes, ("lake", "road", "snow", "lake", "road"), strict=True)
    )
    assert (kinds.counts("train") + kinds.counts("validation")).sum().tolist() == [20] * 5
    assert len(kinds.part("validation")) == 20
    given = split_images(
        make_list(),
        "correlated",
        0,
        only=["pug", "puma", "lynx"],
        contexts=["snow", "road+lake"],
        own={"cat": "road+lake"},
    )
    assert given.parameters["dominant"] == {"cat": "road+lake", "dog": "road+lake"}
    assert given.domains == ("snow", "road+lake")
    sized = split_images(make_list(), "correlated", 0, train_size=100, test_size=30)
    assert (sized.counts("train") + sized.counts("validation")).sum().tolist() == [40, 60]
    assert len(sized.part("test")) == 30


def test_minority_images_go_round_the_contexts():
    """Few images: the one image off its own context must not stand in the same place for every class."""
    manifest = split_images(make_list(), "correlated", 0, classes="kind", per_class=10, ratio=0.9, validation=0.0)
    counts = manifest.counts("train")
    off = [counts.index[counts[name] == 1][0] for name in manifest.classes]
    assert len(set(off)) > 1
    assert any("no training image of 5 groups" in note for note in manifest.notes)


def test_backgrounds_are_used_evenly_and_places_uniformly():
    rows = split_images(make_list(each=800), "correlated", 0).rows
    source = rows[rows["part"] != "test"]
    used = source.groupby(["domain", "background"]).size()
    assert (used.groupby("domain").max() - used.groupby("domain").min()).max() <= 1
    assert rows["scale"].between(550, 850).all()
    assert {rows["scale"].min(), rows["scale"].max()} == {550, 850}
    for column in ("u", "v"):
        assert np.abs(np.bincount(rows[column] // 8192, minlength=8) / len(rows) - 1 / 8).max() < 0.02
        assert abs(np.corrcoef(rows[column], rows["scale"])[0, 1]) < 0.05
    fixed = split_images(make_list(), "correlated", 0, smallest=0.7, largest=0.7).rows
    assert set(fixed["scale"]) == {700}


def test_the_same_inputs_give_the_same_split():
    first = split_images(make_list(), "correlated", 0)
    assert first.hash == split_images(make_list(), "correlated", 0).hash
    assert first.hash == "7813b4b9b7859cc0fdef8682ac66e7ea56c49c409ddf62e45d91df8fe0cba653"
    assert first.hash != split_images(make_list(), "correlated", 1).hash
    steep = split_images(make_list(), "correlated", 0, ratio=0.99)
    assert set(steep.part("test")["id"]) == set(first.part("test")["id"]), "one test part for all ratios"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"ratio": 1.0}, "ratio must be"),
        ({"per_class": 5, "train_size": 5}, "per_class must be left out with train_size"),
        ({"smallest": 0.9}, r"largest must be at least smallest, 0\.9"),
        ({"ratio": "random", "test": "swapped"}, "test must be balanced or crossed"),
        ({"test": "mirrored"}, "mirrored"),
        ({"contexts": ["snow"]}, "2 classes in 1 contexts cannot be correlated"),
        ({"only": ["pug"]}, "1 classes in 3 contexts"),
        ({"own": {"cow": "snow"}}, "unknown class in own 'cow'"),
        ({"own": {"cat": "sand"}}, r"unknown context in own\.cat 'sand'"),
        ({"per_class": 121}, "121 training images of each class were asked for: cat has 120"),
        ({"train_size": 1000}, "1000 images were asked for where there are 300"),
        ({"test_size": 5}, "no test image is left for every class and context"),
    ],
)
def test_mistakes(parameters, message):
    with pytest.raises(UserError, match=message):
        split_images(make_list(), "correlated", 0, **parameters)


def test_other_kinds_of_sources_are_named():
    digits = read_source("embedded", None)
    with pytest.raises(UserError, match="correlated needs cut-outs and backgrounds, as pets-places has; embedded has"):
        split_images(digits, "correlated")
    with pytest.raises(UserError, match="adversarial needs digits"):
        split_images(make_list(), "adversarial")
