"""How much of the dependence weights could remove, and what that costs in effective samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stablenet.weighting import WeightingSettings, effective_sample_size
from stablenet.weighting.problem import solve_problem

PENALTIES = (0.5, 0.1, 0.02)  # gentle to firm
# As training solves it, but for linear features, of which there are few, at three penalties. The axes have their scale.
SETTINGS = WeightingSettings(
    pairs="labels",
    objective="relative",
    num_functions=0,
    scaling="none",
    groups=0,
    min_ess=0.1,
    steps=300,
    tolerance=0.02,
    totals="classes",
)


@dataclass(frozen=True)
class Trade:
    """left: share of the dependence that stays.   ess: effective sample size as a share of the samples."""

    penalty: float
    left: float
    ess: float


def weigh_labels(
    axes: Tensor, y: Tensor, progress: Callable[[int, int], None] | None = None
) -> tuple[list[Trade], Tensor]:
    """Weights that make features independent of the label, gentle to firm; the weights (n,) are the firmest ones.

    axes: (n, k) principal axes of standardised features.   y: (n,) int64.
    """
    trades, weights = [], torch.ones(len(axes))
    for number, penalty in enumerate(PENALTIES):
        settings = replace(SETTINGS, penalty=penalty)
        generator = torch.Generator().manual_seed(settings.seed)
        solution = solve_problem(axes.float(), y, axes.new_empty(0), len(axes), settings, generator)
        before, after = solution.dependence.tolist()
        weights = solution.weights
        trades.append(Trade(penalty, after / before if before > 0 else 1.0, share_effective(weights)))
        if progress is not None:
            progress(number + 1, len(PENALTIES))
    return trades, weights


def share_effective(weights: Tensor) -> float:
    return float(effective_sample_size(weights)) / len(weights)
