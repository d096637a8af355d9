"""The sentence says what the numbers say, also when they are against the method."""

from types import SimpleNamespace

import pytest

from stablenet.demo.demo_runs import describe_difference, write_learned
from stablenet.metrics import compare_pairs


@pytest.mark.parametrize(
    ("ours", "theirs", "head", "worth"),
    [
        ((0.80, 0.81, 0.83), (0.70, 0.72, 0.73), "right more often", "3 of 3 seeds"),
        ((0.80, 0.60, 0.90), (0.70, 0.72, 0.73), "by 5.0 points", "three seeds cannot distinguish this from chance"),
        ((0.70, 0.72, 0.73), (0.80, 0.81, 0.83), "StableNet lost", "0 of 3 seeds"),
        ((0.80, 0.60, 0.60), (0.70, 0.72, 0.73), "StableNet lost", "cannot distinguish this from chance"),
        ((0.7, 0.8), (0.8, 0.7), "equally well", "1 of 2 seeds"),
    ],
)
def test_each_outcome(ours, theirs, head, worth):
    headline, told = describe_difference(compare_pairs(ours, theirs))
    assert head in headline
    assert worth in told


def test_a_clear_win_is_called_one_and_an_unclear_one_is_not():
    clear = describe_difference(compare_pairs((0.80, 0.81, 0.83), (0.70, 0.72, 0.73)))[1]
    assert "excludes zero" in clear
    assert "chance" not in clear
    unclear = describe_difference(compare_pairs((0.80, 0.60, 0.90), (0.70, 0.72, 0.73)))[1]
    assert "excludes zero" not in unclear


def test_a_run_that_did_not_learn_is_named():
    def made(*accuracies):
        return [SimpleNamespace(curves=[{"train": {"accuracy": 0.1}}, {"train": {"accuracy": a}}]) for a in accuracies]

    good = write_learned(SimpleNamespace(reference=made(1.0, 0.98), method=made(0.95, 0.97)))
    assert "ERM 99.0 % and StableNet 96.0 %; every run fitted" in good
    bad = write_learned(SimpleNamespace(reference=made(1.0, 1.0), method=made(0.99, 0.2)))
    assert "StableNet did not learn in every seed" in bad
    assert "ERM did not" not in bad
