"""The columns of a test: a user's data as float64, checked, and the Fourier features of every column."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import pad

from stablenet.errors import UserError
from stablenet.values import Count, Positive, Whole, check_fields
from stablenet.weighting.fourier import (
    Bandwidth,
    FourierFunctions,
    apply_fourier_functions,
    draw_fourier_functions,
    median_distance,
    standardize,
)
from stablenet.weighting.solver import effective_sample_size

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
    size = float(n) if share is None else float(effective_sample_size(share))
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


Columns = Tensor | ArrayLike

Method = Literal["permutation", "asymptotic"]
MIN_ROWS = 10  # at 8 rows the asymptotic test rejected up to 9 % of independent pairs at nominal 5 %


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to compare; see `independence_test` for the meaning of each and its default."""

    num_functions: Whole
    bandwidth: Literal["median"] | Positive
    method: Method
    permutations: Count

    def __post_init__(self) -> None:
        check_fields(self)


def read_columns(values: Columns, name: str) -> Tensor:
    """Turn (n,) or (n, m) numbers into a float64 tensor (n, m) on their own device; n ≥ 10, all finite.

    Integers and booleans are converted; `name` is the argument's name in the error's text.
    """
    columns = _to_float64(values, name)
    if columns.ndim == 1:
        columns = columns.unsqueeze(1)
    if columns.ndim != 2 or columns.shape[1] == 0:
        raise UserError(f"{name} has shape {tuple(columns.shape)}: expected (n,) or (n, at least one column)")
    if len(columns) < MIN_ROWS:
        raise UserError(f"{name} has {len(columns)} rows: a test of independence needs at least {MIN_ROWS}")
    finite = columns.isfinite()
    if not bool(finite.all()):
        row, column = (~finite).nonzero()[0].tolist()
        found = columns[row, column].item()
        raise UserError(
            f"column {column} of {name} holds {found} in row {row}: every value must be finite, "
            "so remove or fill such rows first"
        )
    return columns


def _to_float64(values: Columns, name: str) -> Tensor:
    tensor = values.detach() if isinstance(values, Tensor) else _read_array(values, name)
    if tensor.is_complex():
        raise UserError(f"{name} holds complex numbers: pass the real and imaginary parts as columns")
    return tensor.to(torch.float64)


def _read_array(values: ArrayLike, name: str) -> Tensor:
    array = np.asarray(values)
    if array.dtype.kind not in "biufc":
        raise UserError(f"{name} holds {array.dtype} values: expected numbers, so convert or encode them first")
    return torch.from_numpy(array.astype(np.complex128 if array.dtype.kind == "c" else np.float64))


def read_weights(weights: Columns | None, like: Tensor) -> Tensor | None:
    """Turn sample weights (n,) into shares p = w/Σw (n,); None for equal weights, which weigh nothing."""
    if weights is None:
        return None
    w = _to_float64(weights, "weights").to(like.device)
    if w.shape != like.shape[:1]:
        raise UserError(f"weights has shape {tuple(w.shape)}: expected one weight per row, ({len(like)},)")
    if not bool(w.isfinite().all()) or bool((w < 0).any()) or not bool(w.sum() > 0):
        raise UserError("weights must be finite, non-negative and not all zero")
    if bool((w == w[0]).all()):
        return None
    share = w / w.sum()
    size = float(effective_sample_size(share))
    if size < MIN_ROWS:
        raise UserError(
            f"the weights leave an effective sample size of {size:.1f}: a test of independence needs "
            f"at least {MIN_ROWS}, so use more even weights or more rows"
        )
    return share
