"""A diagnosis of tables whose answer is known, its page, and mistakes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from stablenet import UserError
from stablenet.diagnose.diagnoses import diagnose_table
from stablenet.diagnose.diagnosis_page import write_page
from stablenet.tabular.reading import TableQuestion


def draw_table(agree, noise=0.2, rows=600, seed=0):
    """shape tells the label; the ground agrees with it in `agree` of the rows, and colours follow the ground."""
    g = np.random.default_rng(seed)
    label = g.integers(0, 2, rows)
    ground = np.where(g.random(rows) < agree, label, 1 - label)
    return pd.DataFrame(
        {
            "shape": label + noise * g.normal(size=rows),
            "green": ground + noise * g.normal(size=rows),
            "size": g.normal(size=rows),
            "season": g.choice(["spring", "autumn"], rows),
            "ground": np.where(ground == 1, "grass", "sand"),
            "label": np.where(label == 1, "cow", "camel"),
        }
    )


def test_a_context_that_goes_with_the_label_is_found():
    found = diagnose_table(draw_table(0.9), TableQuestion(target="label", environment="ground"))
    # Not "likely": of two classes tied to two contexts, one pays for the independence of the columns.
    assert found.verdict.level == "perhaps"
    assert "of its weight" in found.verdict.reasons[-1]
    assert found.context.v_before == pytest.approx(0.8, abs=0.07)
    assert found.context.v_after < 0.4
    assert found.context.weight_minority > 2 > 1 > found.context.weight_majority
    assert {(p.first, p.second) for p in found.pairs} == {("shape", "green")}
    assert {c.name for c in found.columns[:2]} == {"shape", "green"}
    assert all(c.p_value > 0.01 for c in found.columns[2:])


def test_noisy_columns_do_not_part_context_and_label():
    """As in examples/toy.py, where pairing the columns with each other gains nothing."""
    found = diagnose_table(draw_table(0.9, noise=0.9), TableQuestion(target="label", environment="ground"))
    assert found.verdict.level == "unlikely"
    assert "does not separate" in found.verdict.advice


def test_a_context_without_the_label_is_none():
    found = diagnose_table(draw_table(0.5), TableQuestion(target="label", environment="ground"))
    assert found.verdict.level == "unlikely"
    assert found.context.v_before < 0.1
    assert found.pairs == ()


def test_without_a_context_the_answer_is_careful():
    tied, free = (
        diagnose_table(draw_table(agree), TableQuestion(target="label", leave_out=("ground",))) for agree in (0.9, 0.5)
    )
    assert tied.verdict.level == "perhaps"
    assert free.verdict.level == "unlikely"


def test_a_number_as_label_is_cut_into_fifths():
    frame = draw_table(0.9).drop(columns="label").assign(y=lambda f: f["shape"] + f["green"])
    found = diagnose_table(frame, TableQuestion(target="y", environment="ground"))
    assert found.classes == ("lowest fifth", "second fifth", "middle fifth", "fourth fifth", "highest fifth")
    assert np.bincount(found.y).tolist() == [120] * 5
    assert found.notes == ("y is a number: it was cut into fifths",)


def test_gaps_categories_and_the_task_are_as_in_a_fit():
    frame = draw_table(0.9).assign(month=lambda f: np.arange(len(f)) % 12, row=lambda f: [f"r{i}" for i in f.index])
    frame.loc[3:40, "green"] = np.nan
    frame.loc[5, "label"] = None
    options = {"leave_out": ("ground",), "categorical": ("month",), "task": "classification"}
    found = diagnose_table(frame, TableQuestion(target="label", **options))
    assert len(found) == len(found.rows) == 599
    assert "green missing" in found.rows[3]
    assert found.notes[0] == "missing values in green (38), label (1)"
    assert "'row' has its own value in nearly every row" in found.notes[-1]


def test_the_page_of_a_table(tmp_path):
    found = diagnose_table(draw_table(0.9), TableQuestion(target="label", environment="ground"), "animals")
    write_page(found, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "shape, green" in text
    assert "season spring" in text
    assert "data:image" not in text


@pytest.mark.parametrize(
    ("change", "choices", "match"),
    [
        (lambda f: f, {"target": "lable"}, "did you mean 'label'"),
        (lambda f: f, {"target": "label", "environment": "soil"}, "column 'soil'"),
        (lambda f: f.assign(label="cow"), {"target": "label"}, "one value"),
        (lambda f: f.assign(ground="x"), {"target": "label", "environment": "ground"}, "one value"),
        (lambda f: f.assign(size=np.nan), {"target": "label", "missing": "error"}, "missing values in size"),
        (lambda f: f.assign(size="x"), {"target": "label", "task": "regression"}, "not a number"),
        (lambda f: f[["shape", "label"]], {"target": "label"}, "1 columns"),
    ],
)
def test_mistakes_are_named(change, choices, match):
    with pytest.raises(UserError, match=match):
        diagnose_table(change(draw_table(0.9)), TableQuestion(**choices))
