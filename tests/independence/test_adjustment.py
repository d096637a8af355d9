"""Adjusted p-values on a case worked by hand."""

from __future__ import annotations

import torch

from stablenet.independence import independence_test
from stablenet.independence.adjustment import adjust_benjamini_hochberg, adjust_holm
from tests.independence.draws import ASYMPTOTIC, normal


def test_adjustments_on_a_case_worked_by_hand() -> None:
    p = torch.tensor([0.04, 0.01, 0.03, 0.5], dtype=torch.float64)
    torch.testing.assert_close(adjust_holm(p), torch.tensor([0.09, 0.04, 0.09, 0.5]).double())
    expected = torch.tensor([0.16 / 3, 0.04, 0.16 / 3, 0.5]).double()
    torch.testing.assert_close(adjust_benjamini_hochberg(p), expected)
    table = independence_test(normal(30, 2, seed=34), normal(30, 2, seed=35), adjustment="holm", **ASYMPTOTIC)
    plain = independence_test(normal(30, 2, seed=34), normal(30, 2, seed=35), **ASYMPTOTIC)
    torch.testing.assert_close(table.p_value.flatten(), adjust_holm(plain.p_value.flatten()))
