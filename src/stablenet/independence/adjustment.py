"""Adjusted p-values for many tests at once, chosen by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stablenet.registry import Registry

ADJUSTMENTS: Registry[Callable[[Tensor], Tensor]] = Registry("adjustment")


def adjust_holm(p: Tensor) -> Tensor:
    """Holm: rejecting where the result is ≤ α errs anywhere with probability ≤ α.   p: (k,)."""
    ordered, order = p.sort()
    steps = torch.arange(len(p), 0, -1, device=p.device)
    return _restore((ordered * steps).cummax(0).values, order)


def adjust_benjamini_hochberg(p: Tensor) -> Tensor:
    """Benjamini–Hochberg: among pairs where the result is ≤ α a share ≤ α is expected false.   p: (k,)."""
    ordered, order = p.sort()
    ranks = torch.arange(1, len(p) + 1, device=p.device)
    return _restore((ordered * len(p) / ranks).flip(0).cummin(0).values.flip(0), order)


def _restore(values: Tensor, order: Tensor) -> Tensor:
    return torch.empty_like(values).scatter_(0, order, values.clamp_max(1.0))


ADJUSTMENTS.add("none", torch.clone)
ADJUSTMENTS.add("holm", adjust_holm)
ADJUSTMENTS.add("benjamini-hochberg", adjust_benjamini_hochberg)
