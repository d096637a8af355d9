"""Loops that will take minutes say so once; short ones are plain ranges."""

from __future__ import annotations

import warnings

import pytest

from stablenet import long_work
from stablenet.long_work import MANY, count_steps, telling


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by as many seconds as it is told."""
    now = [0.0]
    monkeypatch.setattr(long_work.time, "monotonic", lambda: now[0])
    return now


def spend(clock, number, each, stop=None):
    """Take steps of some seconds, `stop` at most; how many were taken."""
    taken = 0
    for _ in count_steps(number, "solving"):
        clock[0] += each
        taken += 1
        if taken == stop:
            break
    return taken


def test_few_steps_are_a_range():
    assert count_steps(MANY - 1, "solving") == range(MANY - 1)


def test_many_steps_are_all_taken(clock):
    assert list(count_steps(MANY + 5, "solving")) == list(range(MANY + 5))


@pytest.mark.parametrize(("number", "each", "told"), [(10**6, 0.36, ["4 d 4 h"]), (MANY, 0.005, [])])
def test_a_loop_of_minutes_says_what_it_expects(clock, number, each, told):
    found = []
    with telling(found.append):
        spend(clock, number, each, stop=400)
        spend(clock, number, each, stop=400)  # once is enough
    assert [text.partition("up to ")[2].partition(";")[0] for text in found] == told


def test_without_a_listener_it_warns(clock):
    with pytest.warns(UserWarning, match=r"solving: 1,000,000 steps are expected to take up to 4 d 4 h; Ctrl-C"):
        spend(clock, 10**6, 0.36, stop=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spend(clock, MANY, 0.001)
