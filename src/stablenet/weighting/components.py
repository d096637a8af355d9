"""The directions in which samples differ most: the leading components of features, with their products."""

from __future__ import annotations

import torch
from torch import Tensor

from stablenet.weighting import distributed
from stablenet.weighting.chunks import ExactSum, Moments, Rows, column_moments
from stablenet.weighting.fourier import standardize

LEAST = 1e-5  # of all variance: a component with less is rounding
ROWS_AT_ONCE = 4096


def leading_components(z: Tensor, count: int) -> Tensor:
    """The `count` leading components of features z (n, m), their squares and pairwise products, all standardized.

    Squares and products let a linear model draw ellipses around groups of samples, as domains are.
    Returns (n, k + k·(k + 1)/2), k at most n and m; components without variance are zeros.
    """
    z = standardize(z)
    tall = len(z) >= z.shape[1]
    variances, vectors = torch.linalg.eigh((z.T @ z if tall else z @ z.T) / len(z))  # rising; the smaller matrix
    chosen = _choose(variances, count)
    return _with_products(z @ vectors[:, chosen] if tall else vectors[:, chosen], chosen, variances)


def stream_components(rows: Rows, count: int) -> Tensor:
    """As `leading_components`, of rows in chunks: their covariance first, then their projections. Needs m × m numbers.

    Returns those of all n samples, in every process.
    """
    moments = column_moments(rows, (parts for _, parts in rows.blocks(ROWS_AT_ONCE)), rows.width)
    mean, slope = standardizing(moments)
    size = rows.width
    total = ExactSum((size, size), mean.dtype, rows, float(rows.total))
    for _, parts in rows.blocks(ROWS_AT_ONCE):
        covariance = mean.new_zeros(size, size)
        for part in parts:
            z = (part - mean).mul_(slope)
            covariance.addmm_(z.T, z)
        total.add(covariance)
    variances, vectors = torch.linalg.eigh(total.result() / rows.total)
    chosen = _choose(variances, count)
    scores = mean.new_zeros(rows.total, len(chosen))
    for chunk, parts in rows.blocks(ROWS_AT_ONCE):
        found = [(part - mean).mul_(slope) @ vectors[:, chosen] for part in parts]
        scores[chunk.start : chunk.stop] = torch.cat(found)
    if rows.shared:
        distributed.sum_in_place(scores)  # every row is some process's, and zero elsewhere
    return _with_products(scores, chosen, variances)


def standardizing(moments: Moments) -> tuple[Tensor, Tensor]:
    """Mean (m,) and factor (m,) that `standardize` columns, in float32; constant columns have the factor 0."""
    varies = moments.spread > 8 * torch.finfo(torch.float32).eps * moments.peak
    slope = varies / torch.where(varies, moments.spread, 1.0)
    return moments.mean.float(), slope.float()


def _choose(variances: Tensor, count: int) -> Tensor:
    """Numbers of the largest variances (given rising), the largest first."""
    return torch.arange(len(variances) - 1, max(-1, len(variances) - 1 - count), -1, device=variances.device)


def _with_products(scores: Tensor, chosen: Tensor, variances: Tensor) -> Tensor:
    leading = standardize(scores) * (variances[chosen] > LEAST * variances.sum())
    first, second = torch.triu_indices(len(chosen), len(chosen), device=scores.device)
    return torch.cat([leading, standardize(leading[:, first] * leading[:, second])], 1)
