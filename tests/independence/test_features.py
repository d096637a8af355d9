"""Bandwidth, principal axes and chunks of the Fourier features."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stablenet.independence import features as features_module
from stablenet.independence import independence_test, null
from stablenet.independence.features import squared_norms
from stablenet.weighting.fourier import median_distance
from tests.independence.draws import normal


def test_median_distance_leaves_equal_values_out() -> None:
    few = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 3.0]).double()
    expected = [np.median([1, 3, 1, 3, 1, 3, 1, 3, 2]), 1.0]
    assert median_distance(torch.stack([few, torch.zeros(6).double()], 1)).tolist() == expected
    many = normal(3000, 1, seed=24)
    exact = torch.pdist(many).median().item()
    assert median_distance(many).item() == pytest.approx(exact, rel=0.02)


def test_small_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = normal(40, 5, seed=25), normal(40, 4, seed=26).exp()
    whole = independence_test(x, y, permutations=50)
    for module in (features_module, null):
        monkeypatch.setattr(module, "CHUNK_ELEMENTS", 2 * 40 * 100)
    parts = independence_test(x, y, permutations=50)
    torch.testing.assert_close(parts.statistic, whole.statistic, rtol=1e-7, atol=0)
    assert torch.equal(parts.p_value, whole.p_value)


def test_principal_axes_change_no_norm() -> None:
    for n, q in ((30, 8), (12, 40)):
        x, y = normal(n, 3, q, seed=27), normal(n, 2, q, seed=28)
        turned = squared_norms(features_module._rotate(x), features_module._rotate(y))
        torch.testing.assert_close(turned, torch.einsum("nia,njb->ijab", x, y).square().sum((2, 3)))
