"""What the results say about weights: how much context and label tell of each other, and comparisons as text."""

import pytest
import torch
from benchmarks.evidence import find_minority, measure_tie, spread

Y = torch.tensor([0, 0, 0, 1, 1, 1])


def test_the_tie_is_one_where_context_tells_the_label_and_zero_where_it_does_not():
    ones = torch.ones(6)
    assert measure_tie(ones, Y, Y + 3) == pytest.approx(1)
    assert measure_tie(ones[:4], torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])) == pytest.approx(0)


def test_weights_that_balance_contexts_undo_the_tie():
    domain = torch.tensor([0, 0, 1, 1, 1, 0])
    assert measure_tie(torch.ones(6), Y, domain) == pytest.approx(1 / 9)  # φ of a 2 × 2 table with 2 : 1 is 1/3
    assert measure_tie(torch.tensor([0.5, 0.5, 1, 0.5, 0.5, 1]), Y, domain) == pytest.approx(0)


def test_the_minority_lies_outside_of_its_classs_most_frequent_context():
    assert find_minority(Y, torch.tensor([4, 4, 5, 6, 5, 6])).tolist() == [False, False, True, False, True, False]


def test_a_single_seed_has_no_spread():
    assert spread([71.26]) == "71.3"
    assert spread([70.0, 72.0]) == "71.0 ± 1.4"
