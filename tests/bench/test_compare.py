"""Wins, ties and losses by hand."""

import pytest

from stablenet.bench.compare import compare_seeds, tally


def test_only_common_seeds_are_compared():
    versus = compare_seeds({0: 5.0, 1: 7.0, 2: 9.0, 8: 1.0}, {2: 6.0, 1: 5.0, 0: 4.0, 9: 99.0})
    assert versus.seeds == (0, 1, 2)
    assert versus.differences == (1.0, 2.0, 3.0)
    assert (versus.mean, versus.deviation) == (2.0, 1.0)
    # Student's t for two degrees of freedom at 97.5 % is 4.302653; 4.302653 / √3 = 2.484138.
    assert (versus.low, versus.high) == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-5)
    assert versus.verdict == "tie"
    assert (versus.seeds_won, versus.seeds_tied, versus.seeds_lost) == (3, 0, 0)


def test_a_clear_difference_is_a_win_or_a_loss():
    ours, theirs = {0: 5.0, 1: 5.1, 2: 5.2}, {0: 1.0, 1: 1.1, 2: 1.1}
    assert compare_seeds(ours, theirs).verdict == "win"
    assert compare_seeds(theirs, ours).verdict == "loss"


def test_one_seed_gives_no_interval_and_none_no_comparison():
    versus = compare_seeds({3: 5.0}, {3: 6.0})
    assert (versus.mean, versus.deviation, versus.low, versus.high, versus.verdict) == (-1.0, None, None, None, None)
    assert compare_seeds({0: 1.0}, {1: 1.0}) is None


def test_a_tally_counts_columns_and_seeds():
    win = compare_seeds({0: 5.0, 1: 5.1, 2: 5.2}, {0: 1.0, 1: 1.1, 2: 1.1})
    tie = compare_seeds({0: 1.0, 1: 3.0, 2: 2.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    one = compare_seeds({0: 1.0}, {0: 2.0})
    counted = tally([win, tie, one, None])
    assert (counted.win, counted.tie, counted.loss, counted.unknown) == (1, 1, 0, 2)
    assert (counted.seeds_won, counted.seeds_tied, counted.seeds_lost) == (4, 1, 2)
