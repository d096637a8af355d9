from __future__ import annotations

import pytest
import torch

from stablenet.diagnose.weigh import PENALTIES, weigh_labels


def test_firmer_weights_leave_less_and_cost_more():
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (400,), generator=g)
    agrees = torch.rand(400, generator=g) < 0.9
    axes = torch.randn(400, 3, generator=g, dtype=torch.float64)
    axes[:, 0] += 4 * torch.where(agrees, y, 1 - y)
    told = []
    trades, weights = weigh_labels(axes, y, lambda done, total: told.append((done, total)))
    assert [t.penalty for t in trades] == list(PENALTIES)
    assert [t.left for t in trades] == sorted((t.left for t in trades), reverse=True)
    assert [t.ess for t in trades] == sorted((t.ess for t in trades), reverse=True)
    assert trades[-1].left < 0.1
    assert float(weights[~agrees].mean()) > 1.7 > 1 > float(weights[agrees].mean())
    assert float(weights.sum()) == pytest.approx(400, rel=1e-4)
    assert told == [(1, 3), (2, 3), (3, 3)]
