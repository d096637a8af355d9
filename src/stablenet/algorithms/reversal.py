"""Gradient reversal: what follows learns a task, what lies before unlearns it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, strength: Tensor) -> Tensor:
        ctx.save_for_backward(strength)
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (strength,) = ctx.saved_tensors
        return -strength * gradients[0], None


def reverse_gradient(features: Tensor, strength: Tensor) -> Tensor:
    """The features unchanged, their gradient times −strength.   features: any shape.   strength: a scalar."""
    reversed_: Tensor = _Reversal.apply(features, strength)
    return reversed_
