"""Blocks of differing width: against the definition, and against `DirectPairs` where the widths agree."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stablenet.weighting.statistic import DirectBlocks, DirectPairs

WIDTHS = (1, 4, 2)


def same_block(widths: tuple[int, ...]) -> Tensor:
    blocks = torch.repeat_interleave(torch.arange(len(widths)), torch.tensor(widths))
    return blocks[:, None] == blocks


def slow_dependence(rows: Tensor, widths: tuple[int, ...], w: Tensor) -> Tensor:
    """Σ_{i<j} ‖cov_w(block i, block j)‖², one pair of columns at a time."""
    p = w / w.sum()
    parts = rows.split(list(widths), 1)
    total = torch.zeros((), dtype=rows.dtype)
    for i, left in enumerate(parts):
        for right in parts[i + 1 :]:
            for a in left.T:
                for b in right.T:
                    total = total + ((p * a * b).sum() - (p * a).sum() * (p * b).sum()) ** 2
    return total


@pytest.fixture
def case() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    rows = torch.randn(30, sum(WIDTHS), generator=generator, dtype=torch.float64)
    return rows, torch.rand(30, generator=generator, dtype=torch.float64) + 0.1


def test_value_and_gradient_agree_with_the_definition(case):
    rows, w = case
    value, gradient = DirectBlocks(rows, same_block(WIDTHS), "covariance").value_and_gradient(w)
    w = w.clone().requires_grad_()
    expected = slow_dependence(rows, WIDTHS, w)
    (slope,) = torch.autograd.grad(expected, w)
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(gradient, slope)


def test_equal_widths_give_direct_pairs(case):
    rows, w = case
    u = rows[:, :6].reshape(30, 3, 2)
    for form in ("covariance", "paper"):
        got = DirectBlocks(u.flatten(1), same_block((2, 2, 2)), form).value_and_gradient(w)
        for mine, theirs in zip(got, DirectPairs(u, form).value_and_gradient(w), strict=True):
            torch.testing.assert_close(mine, theirs)


def test_dependence_inside_a_block_does_not_count():
    column = torch.linspace(-1, 1, 9, dtype=torch.float64)
    rows, w = torch.stack([column, column.square(), column], 1), torch.ones(9, dtype=torch.float64)
    inside, _ = DirectBlocks(rows, same_block((3,)), "covariance").value_and_gradient(w)
    across, _ = DirectBlocks(rows, same_block((2, 1)), "covariance").value_and_gradient(w)
    assert inside == 0
    assert across > 0.1
