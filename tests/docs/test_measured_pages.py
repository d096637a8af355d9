"""Pages of results that benchmarks write say what the figures beside them say."""

import csv
import json
from pathlib import Path

import pytest
from benchmarks import calibration, decisions, elsewhere, roofline, rules, scale, scale_plan

RESULTS = Path(__file__).parents[2] / "results"
NUMBERS = ("mean", "deviation", "difference", "low", "high")


def read_lines():
    with (RESULTS / "rules.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        figures = {name: float(row[name]) if row[name] else None for name in NUMBERS}
        yield rules.Line(**(row | figures | {"seeds": int(row["seeds"])}))


def test_both_rules():
    lines = list(read_lines())
    assert (RESULTS / "rules.md").read_text(encoding="utf-8") == rules.write_page(lines)
    tables = {line.table for line in lines}
    assert tables == {f"{folder}/{name}" for folder, names in rules.TABLES.items() for name in names}


def test_a_difference_beyond_chance_is_bold():
    chosen = rules.Line("t", "r", "R", "c", "source-validation", 3, 50.0, 1.0, 2.0, 0.5, 3.5)
    last = rules.Line("t", "r", "R", "c", "last", 3, 50.0, 1.0, -2.0, -4.5, 0.5)
    assert rules.show_pair([chosen, last]) == "**+2.0** / −2.0 [3]"
    assert "Where the rule matters by more than 3 points: 1 of 1" in rules.write_page([chosen, last])


@pytest.mark.parametrize(
    ("name", "module"), [("decisions", decisions), ("calibration", calibration), ("elsewhere", elsewhere)]
)
def test_page(name, module):
    found = json.loads((RESULTS / "natural" / f"{name}.json").read_text(encoding="utf-8"))
    assert (RESULTS / "natural" / f"{name}.md").read_text(encoding="utf-8") == module.write_page(found)


def test_every_reported_bed_was_decided_on():
    found = json.loads((RESULTS / "natural" / "decisions.json").read_text(encoding="utf-8"))
    assert {recipe: [row["seed"] for row in rows] for recipe, rows in found.items()} == {
        recipe: list(seeds) for recipe, seeds, _, _ in decisions.list_beds()
    }


def test_precision_and_recall():
    def cell(level, gain):
        figures = {"gain": gain, "interval": [None, None], "seeds": [1]}
        return {"level": level, "gains": dict.fromkeys(rules.RULES, figures)}

    found = {"a": cell("likely", 3.0), "b": cell("perhaps", 0.2), "c": cell("unlikely", 2.0), "d": cell("unlikely", -1)}
    said = calibration.say_precision(found)
    assert "precision **1 of 2**" in said
    assert "recall **1 of 2**" in said


def test_the_page_of_scale_says_what_its_records_say():
    folder = RESULTS / "scale"
    records = scale.read_records(folder)
    assert (folder / "README.md").read_text(encoding="utf-8") == scale.write_page(records)
    assert {name.partition("-")[0] for name in records} <= set(scale.PARTS)
    for name, record in records.items():
        device, _, part = name.partition("-")
        assert tuple(fit["size"] for fit in record["fits"]) == scale.PARTS[device][part].sizes, name


def test_the_page_of_the_roofline_says_what_was_counted():
    folder = RESULTS / "weighting"
    counts = [roofline.Count(**each) for each in json.loads((folder / "roofline.json").read_text(encoding="utf-8"))]
    assert (folder / "roofline.md").read_text(encoding="utf-8") == roofline.write_page(counts)


def fit(size, seconds, gib=1.0, **found):
    return scale.Fit("images", size, seconds, 2 * seconds, gib, 0.5, found)


def test_bars_of_scale_can_be_missed():
    part = scale.Part("solve", "samples", (10, 40), 100, 3, "seconds")
    good = [fit(10, 5.0, evaluations=10), fit(40, 21.0, evaluations=10)]
    assert [line[3] for line in scale.judge_growth(part, good)] == ["", "", "holds", "holds", "holds", "holds"]
    bad = [fit(10, 5.0, evaluations=10), fit(40, 101.0, 3.1, evaluations=10)]
    assert [line[3] for line in scale.judge_growth(part, bad)] == ["", "", *["**missed**"] * 4]
    quick = [fit(1, 5.0, evaluations=10), fit(4, 500.0, evaluations=10)]
    assert not any(line[3] for line in scale.judge_growth(part, quick))


def test_larger_sets_are_in_proportion_to_the_records():
    fits = [{"size": 100, "seconds": 2.0, "gib": 1.0}, {"size": 300, "seconds": 4.0, "gib": 1.5}]
    assert scale_plan.slope(fits, "seconds") == 0.01
    assert scale_plan.slope(fits, "gib") == 0.0025
    plan = scale_plan.Plan("some", 7200, 10, 4)
    assert scale_plan.tell_solve("cpu")(plan, {"cpu-images": {"fits": fits}}) == "18 s"
    assert scale_plan.tell_solve("cuda")(plan, {}) == "not recorded yet"


def test_gains_and_losses_beyond_chance():
    def cell(level, low, high):
        return {"level": level, "gains": {rule: {"interval": [low, high]} for rule in rules.RULES}}

    found = {
        "a": cell("likely", 1, 3),
        "b": cell("perhaps", -1, 2),
        "c": cell("unlikely", 1, 2),
        "d": cell("unlikely", -3, -1),
        "e": cell("unlikely", None, None),
    }
    said = calibration.say_beyond_chance(found)
    assert "would act, acting gained on 1 of 2 and lost on 0" in said
    assert "would not, acting gained on 1 of 3 (c) and lost on 1" in said
