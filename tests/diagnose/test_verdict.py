"""The verdict follows from the figures, for images and for tables."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stablenet.diagnose.measure import ContextFindings, Explained, Trade
from stablenet.diagnose.verdict import judge_images, judge_table
from stablenet.weighting.evidence import Evidence
from stablenet.weighting.recommended import Decision

GOOD, STUCK = Trade(1.0, 0.1, 0.4), Trade(1.0, 0.7, 0.2)


def telling(share, p=0.005):
    return Explained(share, p, (share,), (p,), (share,), 0.01, torch.zeros(1, 1))


def context(v=0.5, weight=2.0, p=0.005, left=0.5):
    table = np.full((2, 2), 0.5)
    off = torch.tensor([False, True])
    shares = (0.1, weight, 0.9, table, table)
    return ContextFindings(("a", "b"), 0.5, v, v * left, p, *shares, off.long(), off, 0.1 * weight)


ACT = Decision(True, "the surroundings predict it", Evidence(0.5, 0.5))
PLAIN = Decision(False, "most of it is in the middle", Evidence(0.1, 0.2))


@pytest.mark.parametrize(
    ("decision", "trade", "named", "level"),
    [
        (ACT, GOOD, None, "likely"),
        (ACT, STUCK, None, "perhaps"),
        (ACT, Trade(1.0, 0.1, 0.1), None, "perhaps"),
        (ACT, GOOD, context(), "likely"),
        (ACT, GOOD, context(v=0.02), "likely"),
        (PLAIN, GOOD, None, "unlikely"),
        (PLAIN, STUCK, None, "unlikely"),
        (PLAIN, GOOD, context(), "unlikely"),
        (PLAIN, GOOD, context(v=0.02), "unlikely"),
    ],
)
def test_images(decision, trade, named, level):
    verdict = judge_images(telling(0.5), telling(0.4), trade, decision, named)
    assert verdict.level == level
    assert len(verdict.reasons) == 3 + (named is not None)
    would = "act" if decision.act else "train plainly"
    assert verdict.reasons[1] == f"Training would {would}: {decision.reason}."


def test_what_only_the_middle_tells_is_named():
    verdict = judge_images(telling(0.6), telling(0.1), GOOD, PLAIN, None)
    assert "middle" in verdict.reasons[0]
    assert "middle" not in judge_images(telling(0.6), telling(0.5), GOOD, ACT, None).reasons[0]


def test_a_run_of_even_weights_is_judged_by_its_data():
    even = Trade(1.0, None, 1.0)
    verdict = judge_images(telling(0.5), telling(0.5), even, ACT, context(weight=1.0))
    assert verdict.level == "likely"
    assert verdict.reasons[2] == "All samples weigh the same."


def test_a_run_whose_records_say_nothing_of_the_dependence():
    verdict = judge_images(telling(0.5), telling(0.5), Trade(1.0, None, 0.4), ACT, context())
    assert verdict.reasons[2] == "Weighting leaves 40 % of the samples effective."


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
