"""Arithmetic on counts against brute force."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablenet.data.splits.counting import (
    allot,
    fit_total,
    floor_share,
    minor_count,
    minor_shares,
    name_shortfalls,
    parse_ratio,
    round_share,
)
from stablenet.errors import UserError

SIZES = st.lists(st.integers(0, 60), min_size=1, max_size=6)


@given(SIZES, st.data())
def test_allot_adds_up_and_stays_within_one_of_the_share(sizes: list[int], data: st.DataObject) -> None:
    total = data.draw(st.integers(0, sum(sizes)))
    parts = allot(total, sizes)
    assert sum(parts) == total
    for part, size in zip(parts, sizes, strict=True):
        assert 0 <= part <= size
        if sum(sizes):
            assert abs(part - Fraction(total * size, sum(sizes))) < 1


def test_allot_by_hand() -> None:
    assert allot(3, [1, 1, 1, 1, 1, 1]) == [1, 1, 1, 0, 0, 0]
    assert allot(10, [0, 10, 90]) == [0, 1, 9]
    assert allot(0, [0, 0]) == [0, 0]
    with pytest.raises(UserError, match="7 images were asked for where there are 6"):
        allot(7, [6])


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=4), st.integers(0, 20))
def test_fit_total_is_exact_and_as_near_as_can_be(pairs: list[tuple[int, int]], total: int) -> None:
    wanted, available = [p[0] for p in pairs], [p[1] for p in pairs]
    fitted = fit_total([Fraction(n) for n in wanted], wanted, available, total)
    if sum(available) < total:
        assert fitted is None
        return
    assert fitted is not None
    assert sum(fitted) == total
    assert all(0 <= n <= a for n, a in zip(fitted, available, strict=True))
    start = [min(p) for p in pairs]
    moved = sum(abs(n - s) for n, s in zip(fitted, start, strict=True))
    others = (c for c in product(*(range(a + 1) for a in available)) if sum(c) == total)
    assert moved == min(sum(abs(n - s) for n, s in zip(c, start, strict=True)) for c in others)


def test_the_largest_classes_give_one_each_first() -> None:
    exact = [Fraction(10), Fraction(30), Fraction(20)]
    assert fit_total(exact, [10, 30, 20], [99, 99, 99], 58) == [10, 29, 19]
    assert fit_total(exact, [10, 30, 20], [99, 99, 99], 56) == [9, 28, 19]
    assert fit_total(exact, [10, 30, 20], [99, 25, 99], 55) == [10, 25, 20]


def test_those_furthest_below_their_share_take_first() -> None:
    exact = [Fraction(10), Fraction(31), Fraction(41, 2)]
    assert fit_total(exact, [10, 30, 20], [99, 99, 99], 61) == [10, 31, 20]
    assert fit_total(exact, [10, 30, 20], [99, 99, 99], 62) == [10, 31, 21]
    assert fit_total(exact, [10, 30, 20], [99, 30, 99], 61) == [10, 30, 21]


def test_ratios() -> None:
    assert parse_ratio("5:1:1") == (5, 1, 1)
    assert minor_shares("3:1:1", 2) == [Fraction(1, 3)] * 2
    assert minor_shares("5:1", 7) == [Fraction(1, 5)] * 7
    assert minor_shares("4:2:1", 2) == [Fraction(1, 2), Fraction(1, 4)]
    assert minor_count(753, Fraction(1, 3)) == 250, "a third is 0.333 in the paper's counts"
    for text in ("5", "1:5", "5:0:1", "a:b", "", "5:-1", "5.5:1"):
        with pytest.raises(UserError, match="not like 5:1:1"):
            parse_ratio(text)
    with pytest.raises(UserError, match="2 minor terms where there are 3 minor domains"):
        minor_shares("4:2:1", 3)


def test_round_share_reads_the_decimal_as_written() -> None:
    assert round_share(5, 0.1) == 1, "halves are rounded up"
    assert round_share(15, 0.3) == 5
    assert round_share(1415, 0.7) == 991, "in binary 0.7 × 1415 is below 990.5"
    assert round_share(100, 0.0) == 0
    assert floor_share(10, 0.7) == 7
    assert floor_share(9, 0.7) == 6


def test_shortfalls_are_listed() -> None:
    assert name_shortfalls({"dog in photo": 3, "cat in art": 1}) == "dog in photo lacks 3, cat in art lacks 1"
    assert name_shortfalls({str(k): 1 for k in range(25)}).endswith("and 5 more")
