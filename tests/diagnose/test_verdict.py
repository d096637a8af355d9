from __future__ import annotations

import numpy as np
import pytest
import torch

from stablenet.diagnose.context import ContextFindings
from stablenet.diagnose.telling import Telling
from stablenet.diagnose.verdict import judge_images, judge_table
from stablenet.diagnose.weigh import Trade

GOOD, STUCK = Trade(0.02, 0.1, 0.4), Trade(0.02, 0.7, 0.2)


def telling(share, p=0.005):
    return Telling(share, p, (share,), (p,), (share,), 0.01, torch.zeros(1, 1))


def context(v=0.5, weight=2.0, p=0.005, left=0.5):
    table = np.full((2, 2), 0.5)
    return ContextFindings(("a", "b"), 0.5, v, v * left, p, 0.1, weight, 0.9, table, table)


@pytest.mark.parametrize(
    ("border", "p", "trade", "named", "level"),
    [
        (0.5, 0.005, GOOD, None, "likely"),
        (0.2, 0.005, GOOD, None, "perhaps"),
        (0.05, 0.005, GOOD, None, "unlikely"),
        (0.5, 0.2, GOOD, None, "unlikely"),
        (0.5, 0.005, STUCK, None, "unlikely"),
        (0.5, 0.005, Trade(0.02, 0.1, 0.1), None, "unlikely"),
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
