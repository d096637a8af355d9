"""The verdict follows from the figures, for images and for tables."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stablenet.diagnose.measure import ContextFindings, Explained, Trade
from stablenet.diagnose.verdict import judge_images, judge_table

GOOD, STUCK = Trade(1.0, 0.1, 0.4), Trade(1.0, 0.7, 0.2)


def telling(share, p=0.005):
    return Explained(share, p, (share,), (p,), (share,), 0.01, torch.zeros(1, 1))


def context(v=0.5, weight=2.0, p=0.005, left=0.5):
    table = np.full((2, 2), 0.5)
    off = torch.tensor([False, True])
    shares = (0.1, weight, 0.9, table, table)
    return ContextFindings(("a", "b"), 0.5, v, v * left, p, *shares, off.long(), off, 0.1 * weight)


@pytest.mark.parametrize(
    ("border", "p", "trade", "named", "level"),
    [
        (0.5, 0.005, GOOD, None, "likely"),
        (0.2, 0.005, GOOD, None, "perhaps"),
        (0.05, 0.005, GOOD, None, "unlikely"),
        (0.5, 0.2, GOOD, None, "unlikely"),
        (0.5, 0.005, STUCK, None, "unlikely"),
        (0.5, 0.005, Trade(1.0, 0.1, 0.1), None, "unlikely"),
        (0.5, 0.005, GOOD, context(), "likely"),
        (0.2, 0.005, GOOD, context(), "perhaps"),
        (0.5, 0.005, GOOD, context(weight=1.05), "perhaps"),
        (0.5, 0.005, GOOD, context(weight=0.8), "unlikely"),
        (0.5, 0.005, GOOD, context(weight=float("nan")), "unlikely"),
        (0.5, 0.005, GOOD, context(v=0.02), "perhaps"),
        (0.2, 0.005, GOOD, context(v=0.02), "unlikely"),
        (0.05, 0.005, GOOD, context(), "perhaps"),
    ],
)
def test_images(border, p, trade, named, level):
    verdict = judge_images(telling(max(border, 0.3)), telling(border, p), trade, named)
    assert verdict.level == level
    assert len(verdict.reasons) == 2 + (named is not None)


def test_what_only_the_middle_tells_is_named():
    verdict = judge_images(telling(0.6), telling(0.1), GOOD, None)
    assert "middle" in verdict.reasons[0]
    assert "middle" not in judge_images(telling(0.6), telling(0.5), GOOD, None).reasons[0]


def test_a_run_of_even_weights_is_judged_by_its_data():
    even = Trade(1.0, None, 1.0)
    verdict = judge_images(telling(0.5), telling(0.5), even, context(weight=1.0))
    assert verdict.level == "likely"
    assert verdict.reasons[1] == "All samples weigh the same."
    assert judge_images(telling(0.1), telling(0.05), even, context(v=0.02, weight=1.0)).level == "unlikely"


def test_a_run_whose_records_say_nothing_of_the_dependence():
    verdict = judge_images(telling(0.5), telling(0.5), Trade(1.0, None, 0.4), context())
    assert verdict.reasons[1] == "Weighting leaves 40 % of the samples effective."
    assert judge_images(telling(0.5), telling(0.5), Trade(1.0, None, 0.1), None).level == "unlikely"


@pytest.mark.parametrize(
    ("dependent", "trade", "named", "level"),
    [
        (0, GOOD, None, "unlikely"),
        (3, GOOD, None, "perhaps"),
        (3, STUCK, None, "unlikely"),
        (3, GOOD, context(), "likely"),
        (3, GOOD, context(v=0.01), "unlikely"),
        (3, GOOD, context(weight=0.9), "unlikely"),
        (3, GOOD, context(left=0.9), "unlikely"),
        (3, GOOD, context(weight=1.05), "perhaps"),
    ],
)
def test_tables(dependent, trade, named, level):
    assert judge_table(dependent, 10, trade, named).level == level


def test_a_class_that_is_nearly_left_out_makes_the_answer_careful():
    verdict = judge_table(3, 10, GOOD, context(), lowest=0.2)
    assert verdict.level == "perhaps"
    assert "20 % of its weight" in verdict.reasons[-1]
    assert judge_table(0, 10, GOOD, None, lowest=0.2).level == "unlikely"
