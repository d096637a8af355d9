"""How well a classifier's probabilities tell how often it is right."""

from __future__ import annotations

import torch
from torch import Tensor

BINS = 15  # of equal width; the usual number since the measure came up for deep networks


def calibration_error(probabilities: Tensor, y: Tensor, bins: int = BINS) -> float:
    r"""Expected calibration error Σ_b n_b/n·|accuracy_b − confidence_b| over bins of the largest probability.

    probabilities: (n, classes), rows sum to one.   y: (n,) class.
    """
    confidence, predicted = probabilities.double().max(1)
    right = (predicted == y).double()
    number = (confidence * bins).ceil().long().clamp(1, bins) - 1  # bins are (k/bins, (k + 1)/bins]
    gap = torch.zeros(bins, dtype=torch.float64).index_add_(0, number, right - confidence)
    return float(gap.abs().sum()) / len(y)
