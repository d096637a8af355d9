"""What methods against spurious correlations claim: the worst group gains, where a context tells nearly all."""

from statistics import fmean

import pytest

from tests.algorithms.biased import train, worst_group

SEEDS = (0, 1, 2)
EPOCHS = 3
METHODS = {
    "group-dro": {"groups": "class-domain", "rate": 0.1},
    "known-contexts": {"aim": "groups", "by": "sampling"},
    "dfr": {},
    "jtt": {"upsampling": 10.0},
    "afr": {},
    "ula": {},
}


def measure(method, parameters):
    return fmean(worst_group(train(method, parameters, seed=seed, epochs=EPOCHS)) for seed in SEEDS)


@pytest.fixture(scope="module")
def erm():
    return measure("erm", {})


@pytest.mark.parametrize("method", METHODS)
def test_the_worst_group_gains(method, erm, one_thread):
    assert measure(method, METHODS[method]) > erm + 0.1


def test_the_set_misleads_erm(erm):
    assert erm < 0.8
    assert worst_group(train("erm", ratio=0.5, epochs=EPOCHS)) > 0.9
