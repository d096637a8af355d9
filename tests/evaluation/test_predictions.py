"""Figures and tables of predictions, counted again by hand."""

import pandas as pd
import pytest
import torch

from stablenet.data.manifest import Manifest
from stablenet.errors import UserError
from stablenet.evaluation.predictions import Predictions, measure, save_table, tabulate

CLASSES, DOMAINS = ("cat", "dog"), ("art", "photo", "sketch")

#          domain  class  predicted
SAMPLES = [
    ("photo", "cat", "cat"),
    ("photo", "cat", "dog"),
    ("photo", "cat", "cat"),
    ("photo", "dog", "dog"),
    ("art", "cat", "dog"),
    ("art", "cat", "dog"),
    ("art", "dog", "dog"),
    ("art", "dog", "cat"),
    ("art", "dog", "dog"),
    ("art", "dog", "dog"),
]


@pytest.fixture
def predictions():
    y = torch.tensor([CLASSES.index(label) for _, label, _ in SAMPLES])
    domain = torch.tensor([DOMAINS.index(name) for name, _, _ in SAMPLES])
    logits = torch.tensor([[2.0, 0.0] if guess == "cat" else [0.0, 1.0] for _, _, guess in SAMPLES])
    return Predictions([f"image{k}" for k in range(len(SAMPLES))], logits, y, domain)


def test_figures_by_hand(predictions):
    figures = measure(predictions, DOMAINS, CLASSES)
    assert figures["count"] == 10
    assert figures["accuracy"] == pytest.approx(6 / 10)
    assert figures["per_domain"] == pytest.approx({"photo": 3 / 4, "art": 3 / 6})  # none of sketch
    assert figures["mean_domain_accuracy"] == pytest.approx((3 / 4 + 3 / 6) / 2)
    assert figures["per_class"] == pytest.approx({"cat": 2 / 5, "dog": 4 / 5})
    assert figures["worst_group_accuracy"] == 0
    assert figures["worst_group"] == {"domain": "art", "class": "cat", "accuracy": 0.0, "count": 2}
    # Confidence of a guessed cat is 1/(1+e⁻²) (three, two right), of a dog 1/(1+e⁻¹) (seven, four right).
    sure, unsure = 1 / (1 + torch.e**-2), 1 / (1 + torch.e**-1)
    expected = (abs(2 - 3 * sure) + abs(4 - 7 * unsure)) / 10
    assert figures["calibration_error"] == pytest.approx(expected, abs=1e-6)


def test_the_largest_of_equally_bad_groups_is_named():
    wrong = Predictions(list("abc"), torch.tensor([[1.0, 0.0]] * 3), torch.ones(3).long(), torch.tensor([0, 1, 1]))
    assert measure(wrong, DOMAINS, CLASSES)["worst_group"] == {
        "domain": "photo",
        "class": "dog",
        "accuracy": 0.0,
        "count": 2,
    }


def test_a_table_holds_the_same_and_comes_back_from_files(predictions, tmp_path):
    rows = pd.DataFrame({"id": ["x"], "label": [0], "domain": [0], "part": ["test"]})
    manifest = Manifest("pets", "classic", {}, 0, CLASSES, DOMAINS, rows)
    table = tabulate(predictions, manifest)
    assert [*zip(table["domain"], table["class"], table["predicted"], strict=True)] == SAMPLES
    assert table["right"].mean() == pytest.approx(0.6)
    assert (table[["p_cat", "p_dog"]].sum(axis=1) - 1).abs().max() < 1e-6
    assert (table["probability"] == table[["p_cat", "p_dog"]].max(axis=1)).all()
    for name, read in (("t.csv", pd.read_csv), ("t.parquet", pd.read_parquet)):
        save_table(table, tmp_path / "new" / name)
        assert list(read(tmp_path / "new" / name)["predicted"]) == list(table["predicted"])


def test_other_formats_and_places_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"written as \.csv or \.parquet, got 'a\.xlsx'"):
        save_table(pd.DataFrame(), tmp_path / "a.xlsx")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"):
        save_table(pd.DataFrame(), tmp_path / "file" / "a.csv")
