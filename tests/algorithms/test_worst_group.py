"""What methods against spurious correlations claim: the worst group gains, where a context tells nearly all."""

from functools import cache
from statistics import fmean

import pytest

from tests.algorithms.biased import train, worst_group

SEEDS = (0, 1, 2)
METHODS = {  # settings and epochs
    "group-dro": ({"groups": "class-domain", "rate": 0.1}, 3),
    "known-contexts": ({"aim": "groups", "by": "sampling"}, 3),
    "dfr": ({}, 3),
    "jtt": ({"upsampling": 10.0}, 3),
    "afr": ({}, 3),
    "ula": ({}, 3),
    "lc": ({}, 3),
    "lff": ({}, 6),  # its weights are small at first
    "spare": ({}, 3),
    "eiil": ({"steps": 500, "inference_rate": 0.05, "rate": 0.1}, 3),
}


def measure(method, parameters, epochs):
    return fmean(worst_group(train(method, parameters, seed=seed, epochs=epochs)) for seed in SEEDS)


@cache
def measure_erm(epochs):
    return measure("erm", {}, epochs)


@pytest.mark.parametrize("method", METHODS)
def test_the_worst_group_gains(method, one_thread):
    parameters, epochs = METHODS[method]
    assert measure(method, parameters, epochs) > measure_erm(epochs) + 0.1


def test_the_set_misleads_erm(one_thread):
    assert measure_erm(3) < 0.8
    assert worst_group(train("erm", ratio=0.5, epochs=3)) > 0.9
