"""Losses that stay per sample, and the label columns that the weighting compares features with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from stablenet.registry import Registry


@dataclass(frozen=True)
class PerSampleLoss:
    """compute: outputs and targets to a loss (B,).   columns: targets to labels of the weighting, (B,) or (B, C)."""

    compute: Callable[[Tensor, Tensor], Tensor]
    columns: Callable[[Tensor], Tensor]


LOSSES: Registry[PerSampleLoss] = Registry("loss")


def classify(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy (B,).   logits: (B, C).   targets: (B,) classes, or (B, C) soft ones as mixup gives."""
    return functional.cross_entropy(logits, targets, reduction="none")


def regress(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error (B,) over whatever a sample has.   outputs, targets: (B,) or (B, …), the same shape."""
    squared = functional.mse_loss(outputs.reshape(targets.shape), targets, reduction="none")
    return squared.reshape(len(targets), -1).mean(1)


def classify_many(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy (B,), mean over the C labels that a sample may have at once.   both: (B, C)."""
    each = functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
    return each.mean(1)


def _flatten(targets: Tensor) -> Tensor:
    return targets.reshape(len(targets), -1).float()


LOSSES.add("classification", PerSampleLoss(classify, lambda targets: targets))
LOSSES.add("regression", PerSampleLoss(regress, _flatten))
LOSSES.add("multi-label", PerSampleLoss(classify_many, _flatten))
