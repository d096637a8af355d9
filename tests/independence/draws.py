"""Seeded draws that the tests of independence share."""

from __future__ import annotations

import torch

ASYMPTOTIC = {"method": "asymptotic"}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)
