"""What varies most between samples: the leading principal components of their features, and products of these."""

from __future__ import annotations

import torch
from torch import Tensor

from stablenet.weighting.fourier import standardize

LEAST = 1e-5  # of all variance: a component with less is rounding


def lead(z: Tensor, count: int) -> Tensor:
    """The `count` leading components of features z (n, m), their squares and pairwise products, all standardized.

    Squares and products let a linear model draw ellipses around groups of samples, as domains are.
    Returns (n, k + k·(k + 1)/2), k at most m; components without variance are zeros.
    """
    z = standardize(z)
    variances, directions = torch.linalg.eigh(z.T @ z / len(z))  # rising
    chosen = torch.arange(z.shape[1] - 1, max(-1, z.shape[1] - 1 - count), -1, device=z.device)
    leading = standardize(z @ directions[:, chosen]) * (variances[chosen] > LEAST * variances.sum())
    first, second = torch.triu_indices(len(chosen), len(chosen), device=z.device)
    return torch.cat([leading, standardize(leading[:, first] * leading[:, second])], 1)
