"""Group figures against plain counting, Wilson's interval against published values and its definition, small groups."""

import math

import pytest
import torch
from scipy.stats import binomtest

from stablenet.metrics import (
    SMALLEST_GROUP,
    GroupCounts,
    count_groups,
    describe_groups,
    summarize_groups,
    wilson_interval,
)


@pytest.mark.parametrize(("right", "count"), [(0, 1), (0, 10), (10, 10), (1, 29), (81, 263), (294, 296)])
def test_wilson_against_scipy(right, count):
    expected = binomtest(right, count).proportion_ci(0.95, "wilson")
    assert wilson_interval(right, count) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_solves_its_equation():
    """The bounds are the shares p whose z-test would just not reject: (right/n − p)² = z² p(1 − p)/n."""
    for bound in wilson_interval(17, 40):
        assert (17 / 40 - bound) ** 2 == pytest.approx(1.959963985**2 * bound * (1 - bound) / 40, rel=1e-6)
    assert wilson_interval(17, 40, 0.5)[0] > wilson_interval(17, 40)[0]


def test_groups_against_plain_counting():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 3, generator=generator)
    y = torch.randint(0, 3, (400,), generator=generator)
    domain = torch.randint(0, 4, (400,), generator=generator)
    y[domain == 1] = 0  # a domain with one class only
    domain[domain == 2] = 0  # a domain without samples
    counts = GroupCounts(4, 3, torch.device("cpu"))
    for part in torch.arange(400).split(64):
        counts.add(logits[part], y[part], domain[part])
    names, classes = ["p", "q", "r", "s"], ["a", "b", "c"]
    found = counts.figures(names, classes)
    right = (logits.argmax(1) == y).tolist()
    cells = {}
    for k in range(400):
        cells.setdefault((names[domain[k]], classes[y[k]]), []).append(right[k])
    shares = {key: sum(hits) / len(hits) for key, hits in cells.items()}
    groups = found["groups"]
    assert {(d, c): pair for d, row in groups["per_group"].items() for c, pair in row.items()} == {
        key: {"right": sum(hits), "count": len(hits)} for key, hits in cells.items()
    }
    worst = min(shares, key=shares.get)
    assert (groups["worst"]["domain"], groups["worst"]["class"]) == worst
    assert groups["worst"]["accuracy"] == pytest.approx(shares[worst])
    assert (groups["worst"]["low"], groups["worst"]["high"]) == wilson_interval(sum(cells[worst]), len(cells[worst]))
    assert groups["mean"] == pytest.approx(sum(shares.values()) / 7)
    assert groups["gap"] == pytest.approx(sum(right) / 400 - shares[worst])
    assert (groups["number"], groups["contexts"], groups["small"]) == (7, 3, 0)
    assert found["worst_group_accuracy"] == pytest.approx(shares[worst])


def describe(cells):
    """cells: rows of (right, all) per domain."""
    table = torch.tensor(cells)
    names = [f"d{k}" for k in range(len(cells))]
    return describe_groups(table[..., 0], table[..., 1], names, [f"c{k}" for k in range(len(cells[0]))])


def test_a_small_group_is_shown_and_not_called_worst():
    groups = describe([[(9, 10), (1, SMALLEST_GROUP - 1)], [(40, 50), (30, 30)]])
    assert (groups["worst"]["domain"], groups["worst"]["class"], groups["worst"]["small"]) == ("d1", "c0", False)
    assert groups["small"] == 1
    assert groups["per_group"]["d0"]["c1"] == {"right": 1, "count": SMALLEST_GROUP - 1}
    assert groups["mean"] == pytest.approx((0.9 + 1 / 9 + 0.8 + 1) / 4), "every group counts in the mean"
    assert groups["gap"] == pytest.approx(80 / 99 - 0.8)


def test_among_small_groups_alone_the_worst_says_that_it_is_small():
    groups = describe([[(3, 4), (1, 4)], [(0, 0), (2, 8)]])
    assert (groups["worst"]["domain"], groups["worst"]["class"]) == ("d1", "c1"), "the larger of two equally bad ones"
    assert groups["worst"]["small"]
    assert (groups["number"], groups["small"]) == (3, 3)


def test_many_contexts_are_not_listed():
    assert "per_group" in describe([[(1, 2)]] * 20)
    assert "per_group" not in describe([[(1, 2)]] * 21)


def test_any_integers_make_groups():
    right, group = torch.tensor([True, False, True, True]), torch.tensor([2, 2, 0, 2])
    hits, total = count_groups(right, group, 4)
    assert (hits.tolist(), total.tolist()) == ([1, 0, 2, 0], [1, 0, 3, 0])
    summary = summarize_groups(hits, total)
    assert (summary.worst, summary.groups, summary.lowest) == (2, 2, pytest.approx(2 / 3))
    assert math.isclose(summary.gap, 3 / 4 - 2 / 3)


def test_pseudo_groups_are_classes_among_raised_and_other_weights():
    generator = torch.Generator().manual_seed(1)
    logits, y = torch.randn(300, 3, generator=generator), torch.randint(0, 3, (300,), generator=generator)
    weights = 2 * torch.rand(300, generator=generator)
    counts, plain = (GroupCounts(2, 3, torch.device("cpu")) for _ in range(2))
    for part in torch.arange(300).split(64):
        counts.add(logits[part], y[part], torch.zeros_like(y[part]), weights[part])
        plain.add(logits[part], y[part], torch.zeros_like(y[part]))
    assert "pseudo_groups" not in plain.figures(["p", "q"], ["a", "b", "c"])
    found = counts.figures(["p", "q"], ["a", "b", "c"])["pseudo_groups"]
    right = logits.argmax(1) == y
    shares = []
    for name, side in (("raised", weights > 1), ("lowered", weights <= 1)):
        for k, label in enumerate("abc"):
            members = right[side & (y == k)]
            shares.append(float(members.double().mean()))
            assert found["per_group"][name][label] == {"right": int(members.sum()), "count": len(members)}
    assert found["worst"]["accuracy"] == pytest.approx(min(shares))
    assert found["mean"] == pytest.approx(sum(shares) / 6)
