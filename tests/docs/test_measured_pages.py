"""Pages of results that benchmarks write say what the figures beside them say."""

import csv
import json
from pathlib import Path

import pytest
from benchmarks import calibration, decisions, rules

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


@pytest.mark.parametrize(("name", "module"), [("decisions", decisions), ("calibration", calibration)])
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
