"""A loss with StableNet inside: called as any criterion is, `loss = criterion(model(x), y)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from stablenet.integrations.losses import LOSSES, PerSampleLoss
from stablenet.integrations.taps import FeatureTaps
from stablenet.weighting import StableWeighting


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
    When the model is in `eval()` the loss is the plain mean. The memory is in the criterion's state_dict: save it
    beside the model's to go on exactly.
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
