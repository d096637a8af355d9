"""Losses with StableNet for any training loop: called like any criterion, `loss = criterion(model(x), y)`.

`StableCriterion` needs only batches, and its weights are those of batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from stablenet.models import FeatureTaps
from stablenet.registry import Registry
from stablenet.weighting import StableWeighting


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


class StableCriterion(nn.Module):
    """mean(w · loss), w from the features that the model's own modules gave in its latest forward pass.

    >>> import torch
    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    >>> criterion = StableCriterion(model, ["0"], seed=0)
    >>> loss = criterion(model(torch.randn(8, 3, 6, 6)), torch.arange(8) % 2)
    >>> loss.backward()

    taps: paths of modules, one or several; for the preset `recommended` early ones, where context shows.
    loss: "classification", "regression", "multi-label", or a `PerSampleLoss` of one's own.
    overrides: fields of `WeightingSettings`.
    When the model is in `eval()` the loss is the plain mean. The memory is in the criterion's state_dict: save it with
    the model's to resume exactly.
    """

    def __init__(
        self,
        model: nn.Module,
        taps: Sequence[str],
        *,
        loss: str | PerSampleLoss = "classification",
        preset: str = "recommended",
        **overrides: Any,
    ) -> None:
        super().__init__()
        self.taps = FeatureTaps(model, taps)
        self.loss = LOSSES[loss] if isinstance(loss, str) else loss
        self.weighting = StableWeighting(preset, **overrides)
        self.last_weights: Tensor | None = None

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """outputs: what the model gave.   targets: (B,) or (B, …), as the loss takes them.   Returns a scalar."""
        per_sample = self.loss.compute(outputs, targets)
        features = self.taps.take()
        if not self.taps.training:
            return per_sample.mean()
        self.last_weights = self.weighting(features, labels=self.loss.columns(targets))
        return (self.last_weights * per_sample).mean()
