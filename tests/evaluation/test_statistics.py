"""Spreads and paired differences by hand."""

import math

import pytest

from stablenet.evaluation.statistics import compare_pairs, summarize


def test_the_deviation_is_that_of_a_sample():
    spread = summarize([1.0, 2.0, 6.0])
    assert spread.mean == 3.0
    assert spread.deviation == pytest.approx(math.sqrt((4 + 1 + 9) / 2))


def test_pairs_by_hand():
    # Differences 1, 2, 3: mean 2, deviation 1; Student's t for two degrees of freedom at 97.5 % is 4.302653.
    paired = compare_pairs([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert paired.differences.values == (1.0, 2.0, 3.0)
    reach = 4.302653 / math.sqrt(3)
    assert (paired.low, paired.high) == pytest.approx((2 - reach, 2 + reach), abs=1e-5)
    assert not paired.is_clear


def test_clear_on_either_side():
    assert compare_pairs([2.0, 2.1, 2.2], [0.0, 0.1, 0.1]).is_clear
    assert compare_pairs([0.0, 0.1, 0.1], [2.0, 2.1, 2.2]).is_clear


def test_unpaired_values_are_refused():
    with pytest.raises(ValueError, match="zip"):
        compare_pairs([1.0, 2.0], [1.0])
