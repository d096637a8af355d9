"""The border of the test: what a user passes becomes float64 columns, or one clear sentence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from stablenet.errors import UserError
from stablenet.independence.features import effective_size
from stablenet.registry import unknown_name
from stablenet.weighting.fourier import Bandwidth

Columns = Tensor | ArrayLike

METHODS = ("permutation", "asymptotic")
MIN_ROWS = 10  # at 8 rows the asymptotic test rejected up to 9 % of independent pairs at nominal 5 %


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to compare; see `independence_test` for the meaning of each and its default."""

    num_functions: int
    bandwidth: Bandwidth
    method: str
    permutations: int

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UserError(unknown_name("method", self.method, METHODS))
        if self.num_functions != int(self.num_functions) or self.num_functions < 0:
            raise UserError(
                f"num_functions is {self.num_functions}: expected a whole number, at least 1, or 0 for the linear case"
            )
        if self.permutations < 1:
            raise UserError(f"permutations is {self.permutations}: expected at least 1; 999 is usual")
        if isinstance(self.bandwidth, str):
            if self.bandwidth != "median":
                raise UserError(f"bandwidth is {self.bandwidth!r}: expected 'median' or a positive number")
        elif not 0 < self.bandwidth < float("inf"):
            raise UserError(f"bandwidth is {self.bandwidth}: expected 'median' or a positive number")


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
    size = effective_size(share)
    if size < MIN_ROWS:
        raise UserError(
            f"the weights leave an effective sample size of {size:.1f}: a test of independence needs "
            f"at least {MIN_ROWS}, so use more even weights or more rows"
        )
    return share
