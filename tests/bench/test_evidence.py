"""What the results say: weights by context, and comparisons as text."""

import pytest
from benchmarks.evidence import spread, weigh


def test_weights_raise_the_minority_and_loosen_the_tie():
    told = weigh("embedded-dr0.9", 0, None, ["method.parameters.overrides.penalty=0.02"])
    assert told["minority_weight"] > 1.5 > 1 > told["majority_weight"]
    assert told["dependence_after"] < 0.5 * told["dependence_before"]
    assert told["tie_after"] <= told["tie_before"] <= 1


def test_a_large_penalty_leaves_the_tie_as_it_is():
    told = weigh("embedded-dr0.9", 0, None, ["method.parameters.overrides.penalty=1000.0"])
    assert told["minority_weight"] == pytest.approx(1, abs=0.01)
    assert told["tie_after"] == pytest.approx(told["tie_before"], abs=0.01)


def test_a_single_seed_has_no_spread():
    assert spread([71.26]) == "71.3"
    assert spread([70.0, 72.0]) == "71.0 ± 1.4"
