"""Centred Fourier features of every column, turned into few principal axes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from stablenet.weighting.fourier import (
    Bandwidth,
    FourierFunctions,
    apply_fourier_functions,
    draw_fourier_functions,
    median_distance,
    standardize,
)

CHUNK_ELEMENTS = 2**24  # numbers held at once in an intermediate: 128 MiB in float64
_DROPPED_ENERGY = 1e-10  # share of a column's variance that may be left out of its principal axes


@dataclass(frozen=True)
class ColumnFeatures:
    """Features of m columns such that the cross-covariance of columns i and j is x_iᵀ y_j.

    x: (n, m, k) centred, scaled by √(p/(1 − Σp²)), which is 1/√(n−1) without weights; in principal axes.
    size: n, or under weights the effective sample size 1/Σp².
    """

    x: Tensor
    size: float
    weighted: bool

    def trace(self, power: int) -> Tensor:
        """tr(Σ_iiᵏ) of every column's own covariance, (m,).   power: k, 1 to 3."""
        # The axes are principal, so Σ_ii is diagonal.
        return self.x.square().sum(0).pow(power).sum(1)

    def fourth_moment(self) -> Tensor:
        """Σ over rows of ‖x_i‖⁴, (m,)."""
        return self.x.square().sum(2).square().sum(0)


def effective_size(share: Tensor) -> float:
    """1/Σp², the number of equally weighted rows that carry as much.   share: (n,) sums to 1."""
    return 1 / float(share.square().sum())


def build_features(
    columns: Tensor,
    *,
    num_functions: int,
    bandwidth: Bandwidth,
    share: Tensor | None,
    generator: torch.Generator,
) -> ColumnFeatures:
    """Fourier features of columns (n, m), ready for `squared_norms`; share: (n,) sums to 1, or None."""
    n, m = columns.shape
    z = standardize(columns)
    p = z.new_full((n,), 1 / n) if share is None else share
    size = float(n) if share is None else effective_size(share)
    if num_functions == 0:
        return ColumnFeatures(_centre(z.unsqueeze(-1), p), size, share is not None)
    z = z / (median_distance(z) if bandwidth == "median" else float(bandwidth))
    functions = draw_fourier_functions(m, num_functions, generator=generator, device=generator.device, dtype=z.dtype)
    varies = (z != 0).any(0)  # a constant column's features are constant but for rounding: make that exact
    parts = []
    for chunk in _slices(m, n * num_functions):
        chosen = FourierFunctions(functions.omega[chunk].to(z.device), functions.phase[chunk].to(z.device))
        u = apply_fourier_functions(z[:, chunk], chosen)
        parts.append(_rotate(_centre(u, p) * varies[chunk, None]))
    rank = max(part.shape[2] for part in parts)
    x = torch.cat([pad(part, (0, rank - part.shape[2])) for part in parts], 1)
    return ColumnFeatures(x, size, share is not None)


def _centre(u: Tensor, p: Tensor) -> Tensor:
    """Centre u (n, m, q) under the shares p (n,) and scale so that x_iᵀ y_j is the covariance."""
    mean = (p @ u.flatten(1)).reshape(u.shape[1:])
    return (u - mean) * (p / (1 - p.square().sum())).sqrt()[:, None, None]


def _rotate(x: Tensor) -> Tensor:
    """Turn x (n, m, q) into each column's principal axes and keep those with variance, (n, m, k ≤ q).

    A norm does not see the rotation. The functions of one variable overlap so much that k is near 12
    for 100 of them (up to 40 for heavy tails), which is what makes many functions as cheap as a few.
    """
    by_column = x.permute(1, 0, 2)
    wide = x.shape[2] > x.shape[0]  # more functions than rows: the smaller Gram matrix has the same variances
    values, axes = torch.linalg.eigh(by_column @ by_column.mT if wide else by_column.mT @ by_column)
    values = values.clamp_min(0)
    lost = values.cumsum(1)  # ascending: the smallest variances come first
    dropped = int((lost <= _DROPPED_ENERGY * lost[:, -1:]).sum(1).min())
    first = min(dropped, values.shape[1] - 1)
    kept = axes[:, :, first:]
    turned = kept * values[:, None, first:].sqrt() if wide else torch.bmm(by_column, kept)
    return turned.permute(1, 0, 2)


def squared_norms(x: Tensor, y: Tensor) -> Tensor:
    """‖x_iᵀ y_j‖²_F for every pair of columns.   x: (n, p, k).   y: (n, r, l).   Returns (p, r)."""
    flat = y.flatten(1)
    parts = []
    for chunk in _slices(x.shape[1], x.shape[2] * flat.shape[1]):
        product = x[:, chunk].flatten(1).T @ flat
        blocks = product.reshape(-1, x.shape[2], y.shape[1], y.shape[2])
        parts.append(blocks.square().sum((1, 3)))
    return torch.cat(parts)


def _slices(columns: int, elements_each: int) -> Iterator[slice]:
    """Cut a range of columns into slices whose elements together stay within CHUNK_ELEMENTS."""
    step = max(1, CHUNK_ELEMENTS // elements_each)
    for start in range(0, columns, step):
        yield slice(start, start + step)
