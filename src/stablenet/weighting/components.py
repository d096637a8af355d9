"""What varies most between samples: the leading principal components of their features, and products of these."""

from __future__ import annotations

import torch
from torch import Tensor

from stablenet.weighting.fourier import standardize

LEAST = 1e-5  # of all variance: a component with less is rounding


def leading_components(z: Tensor, count: int) -> Tensor:
    """The `count` leading components of features z (n, m), their squares and pairwise products, all standardized.

    Squares and products let a linear model draw ellipses around groups of samples, as domains are.
    Returns (n, k + k·(k + 1)/2), k at most n and m; components without variance are zeros.
    """
    z = standardize(z)
    tall = len(z) >= z.shape[1]
    variances, vectors = torch.linalg.eigh((z.T @ z if tall else z @ z.T) / len(z))  # rising; the smaller matrix
    chosen = torch.arange(len(variances) - 1, max(-1, len(variances) - 1 - count), -1, device=z.device)
    scores = z @ vectors[:, chosen] if tall else vectors[:, chosen]
    leading = standardize(scores) * (variances[chosen] > LEAST * variances.sum())
    first, second = torch.triu_indices(len(chosen), len(chosen), device=z.device)
    return torch.cat([leading, standardize(leading[:, first] * leading[:, second])], 1)
