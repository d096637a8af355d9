"""Groups, classes, confusions and calibration: by hand from made predictions; what is not there is not shown."""

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from stablenet.metrics import describe_groups
from stablenet.report.detail import draw_calibration, look_closer, measure_calibration
from tests.report.test_report_page import ERM, OURS

RULE = "source-validation"


def write(folder, rows):
    """A run's predictions from (domain, class, predicted, probability)."""
    folder.mkdir(parents=True)
    frame = pd.DataFrame(rows, columns=["domain", "class", "predicted", "probability"])
    frame.assign(right=frame["class"] == frame["predicted"]).to_parquet(folder / f"predictions-{RULE}-test.parquet")
    return SimpleNamespace(path=folder)


@pytest.fixture
def gain(tmp_path):
    """Two seeds; StableNet is right about cats outdoors, ERM is not."""
    easy = [("indoors", "cat", "cat", 0.9), ("outdoors", "dog", "dog", 0.95)]
    wrong, right = [("outdoors", "cat", "dog", 0.8)] * 2, [("outdoors", "cat", "cat", 0.7)] * 2
    half = [right[0], wrong[0]]
    return SimpleNamespace(
        reference=ERM,
        row=OURS,
        runs={
            "erm": {seed: (write(tmp_path / f"erm{seed}", easy + wrong),) for seed in (0, 1)},
            "ours": {0: (write(tmp_path / "a", easy + right),), 1: (write(tmp_path / "b", easy + half),)},
        },
    )


def test_every_group_with_both_methods_and_the_gain(gain):
    found = look_closer(gain, {}, RULE)
    assert (found.class_names, found.contexts) == (("cat", "dog"), ("indoors", "outdoors"))
    group = found.groups["cat", "outdoors"]
    assert (group.theirs, group.ours, group.count) == (0.0, 75.0, 2)
    assert group.versus.differences == (100.0, 50.0)
    assert group.shade == "up4"
    assert found.groups["cat", "indoors"].shade == ""
    assert ("dog", "indoors") not in found.groups


def test_groups_of_the_records_need_no_predictions(gain):
    figures = {}
    for side, right in (("erm", 5), ("ours", 15)):
        for refs in gain.runs[side].values():
            refs[0].path.joinpath(f"predictions-{RULE}-test.parquet").unlink()
            hits, count = torch.tensor([[right], [20]]), torch.tensor([[20], [20]])
            figures[refs[0].path] = {"groups": describe_groups(hits, count, ("sea", "shore"), ("cat",))}
    found = look_closer(gain, figures, RULE)
    assert (found.groups["cat", "sea"].theirs, found.groups["cat", "sea"].ours) == (25.0, 75.0)
    assert found.groups["cat", "sea"].count == 20
    assert found.worst.versus.mean == pytest.approx(50)
    assert list(found.confusions) == []


def test_what_each_class_is_taken_for(gain):
    theirs, ours = look_closer(gain, {}, RULE).confusions
    assert theirs.name == "Plain"
    assert [round(value) for value, _ in dict(theirs.rows)["cat"]] == [33, 67]
    assert [round(value) for value, _ in dict(ours.rows)["cat"]] == [83, 17]
    assert dict(theirs.rows)["dog"][1] == (100.0, "t9")


def test_classes_worst_group_and_calibration_come_from_the_records(gain):
    figures = {
        ref.path: {"per_class": {"cat": share}, "worst_group_accuracy": share, "calibration_error": 0.1}
        for side, share in (("erm", 0.5), ("ours", 0.75))
        for refs in gain.runs[side].values()
        for ref in refs
    }
    found = look_closer(gain, figures, RULE)
    assert (found.classes["cat"].theirs, found.classes["cat"].ours) == (50.0, 75.0)
    assert found.worst.versus.mean == pytest.approx(25)
    assert found.calibration.ours == pytest.approx(10)


def test_without_predictions_nothing_is_invented(gain):
    for file in Path(gain.runs["ours"][0][0].path).glob("*.parquet"):
        file.unlink()
    found = look_closer(gain, {}, RULE)
    assert found.groups is None
    assert (list(found.confusions), found.curve, found.is_empty) == ([], "", True)


def test_calibration_by_hand():
    frame = pd.DataFrame({"probability": [0.91, 0.99, 1.0, 0.55], "right": [True, False, True, True]})
    points = measure_calibration(frame)
    assert points == [(pytest.approx(0.55), 1.0, 1), (pytest.approx(2.9 / 3), pytest.approx(2 / 3), 3)]
    assert "96" in draw_calibration([{0: [frame]}, None]) or "97" in draw_calibration([{0: [frame]}, None])
