"""The DomainBed adapter: it learns, predicts logits, and its state holds the memory."""

from __future__ import annotations

import pytest
import torch

from stablenet import UserError
from stablenet.integrations.domainbed import DomainBedStableNet, choose_backbone

HPARAMS = {"lr": 1e-3, "weight_decay": 0.0}


def test_update_learns_and_predict_gives_logits():
    torch.manual_seed(0)
    algorithm = DomainBedStableNet((3, 28, 28), 2, 2, HPARAMS)
    x = torch.rand(16, 3, 28, 28)
    y = (torch.arange(16) % 2).long()
    x[y == 1] *= 0.3
    losses = [algorithm.update([(x[:8], y[:8]), (x[8:], y[8:])])["loss"] for _ in range(15)]
    assert losses[-1] < 0.7 * losses[0]
    assert algorithm.weighting.diagnostics["ess_ratio"] < 1
    algorithm.eval()
    assert algorithm.predict(x).shape == (16, 2)


def test_the_state_holds_the_memory_too():
    algorithm = DomainBedStableNet((3, 28, 28), 2, 2, HPARAMS)
    algorithm.update([(torch.rand(8, 3, 28, 28), torch.arange(8) % 2)])
    other = DomainBedStableNet((3, 28, 28), 2, 2, HPARAMS)
    other.load_state_dict(algorithm.state_dict())
    assert other.weighting.memory.filled == 8


def test_backbones():
    assert choose_backbone((3, 28, 28), {}) == "paper-cnn"
    assert choose_backbone((3, 224, 224), {"resnet18": True}) == "resnet18"
    assert choose_backbone((3, 224, 224), {"resnet18": False}) == "resnet50"
    assert choose_backbone((2, 28, 28), {"stablenet_backbone": "my.net:make"}) == "my.net:make"
    with pytest.raises(UserError, match="2 channels"):
        choose_backbone((2, 28, 28), {})
