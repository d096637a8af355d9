"""The weighted covariance and the statistic D by its definition, from the (m·q)² covariance matrix itself.

The two covariances of the field are one: Σ = s·Uᵀ A U with A = diag(d) − c·v vᵀ.

| form         | d         | v | c   | s       | meaning                                          |
|--------------|-----------|---|-----|---------|--------------------------------------------------|
| `paper`      | w²        | w | 1/n | 1/(n−1) | covariance of the weighted features w·u (Eq. 6, sigmaabw) |
| `covariance` | p = w/Σw  | p | 1   | 1       | covariance under the weighted distribution       |

The `paper` form is not shift-invariant, and it is not zero for independent features once the weights differ:
it then measures E[u]·E[v]·var(w) as well. `covariance` is zero exactly when the features are uncorrelated under
the weights, and is the form to prefer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from stablenet.errors import UserError
from stablenet.registry import unknown_name

Form = Literal["paper", "covariance"]


@dataclass(frozen=True)
class WeightMeasure:
    """The matrix A of one weight vector w (n,).   d: (n,).   v: (n,).   c, s: scalars.   total: Σw."""

    d: Tensor
    v: Tensor
    c: float
    s: float
    total: Tensor


def measure_weights(w: Tensor, form: Form) -> WeightMeasure:
    """A's parts for weights w (n,), non-negative and not all zero."""
    n, total = w.shape[0], w.sum()
    if form == "paper":
        return WeightMeasure(w * w, w, 1 / n, 1 / max(n - 1, 1), total)
    p = w / total
    return WeightMeasure(p, p, 1.0, 1.0, total)


def pull_back(a: WeightMeasure, grad_d: Tensor, grad_v: Tensor, form: Form) -> Tensor:
    """The gradient with respect to w (n,) from those with respect to d and v (the chain rule)."""
    if form == "paper":
        return 2 * a.v * grad_d + grad_v
    grad_p = grad_d + grad_v
    return (grad_p - a.v @ grad_p) / a.total


def centre_for(form: Form, u: Tensor) -> Tensor:
    """u (n, …) with its column means removed where that changes nothing but the rounding.

    The `covariance` form does not see a shift, and float32 gradients near uniform weights gain three digits
    from the centring. In the `paper` form it would change the objective, so u is returned as it is.
    """
    return u - u.mean(0) if form == "covariance" else u


def check_form(form: str) -> None:
    if form not in get_args(Form):
        raise UserError(unknown_name("form", form, get_args(Form)))


# Rows whose products are held at once: bounds the extra memory at ROWS_AT_ONCE × m·q numbers.
ROWS_AT_ONCE = 16_384


class DirectBlocks:
    """D(w) = ½ Σ_ab Σ_ab² over the columns a, b that have nothing in common, and its gradient, from Σ itself.

    With columns in blocks that is Σ_{i<j} ‖Σ_ij‖²_F, and the blocks may differ in width: a one-hot category, or a
    feature with all its functions, is one block. A function of several features belongs to all of theirs.
    rows: (n, k), kept as it is; in the `covariance` form centre it first (see `centre_for`).
    related: (k, k) boolean, symmetric: True for two columns that are not to be made independent.
    Each evaluation costs 2·n·k² multiply-adds.
    """

    def __init__(self, rows: Tensor, related: Tensor, form: Form) -> None:
        self.form = form
        self._rows = rows
        self._related = related

    def value_and_gradient(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """w: (n,).   Returns D, a scalar, and ∂D/∂w (n,)."""
        a = measure_weights(w, self.form)
        mean, sigma = self._gather(a)
        off = sigma.masked_fill_(self._related, 0.0)
        grad_d, products = self._pull(off, off @ mean)
        value = 0.5 * off.square().sum()
        return value, pull_back(a, a.s * grad_d, a.s * (products * (-2 * a.c)), self.form)

    def _gather(self, a: WeightMeasure) -> tuple[Tensor, Tensor]:
        """μ (k,) and Σ (k, k): what an evaluation needs of all rows first."""
        mean = self._rows.T @ a.v
        return mean, weighted_covariance(self._rows, a, mean)

    def _pull(self, off: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
        """xᵀ M x and xᵀ v of every row x, each (n,).   off: M (k, k).   vector: v (k,)."""
        return quadratic_forms(self._rows, off), self._rows @ vector


class DirectPairs(DirectBlocks):
    """D(w) over feature pairs (Eq. 7, learning_weight) and its gradient: blocks of q functions each.

    u: (n, m, q).   Each evaluation costs 2·n·(m·q)² multiply-adds.
    """

    def __init__(self, u: Tensor, form: Form) -> None:
        n, m, q = u.shape
        blocks = torch.arange(m, device=u.device).repeat_interleave(q)
        super().__init__(centre_for(form, u).reshape(n, -1), blocks[:, None] == blocks, form)


class DirectSamePairs:
    """Σ_a Σ_{i≠j} cov(u_ia, u_ja)² and its gradient: functions of the same number only, each ordered pair counted.

    The q matrices of m² numbers are formed at once, from products of the size of u: for at most `ROWS_AT_ONCE` rows.
    u: (n, m, q).   Each evaluation costs 2·n·m²·q multiply-adds.
    """

    def __init__(self, u: Tensor, form: Form) -> None:
        self.form = form
        self._rows = centre_for(form, u).permute(2, 0, 1).contiguous()  # (q, n, m)

    def value_and_gradient(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """w: (n,).   Returns the value, a scalar, and its gradient (n,)."""
        a = measure_weights(w, self.form)
        mean = a.v @ self._rows  # (q, m)
        outer = mean.unsqueeze(2) * mean.unsqueeze(1)
        off = torch.baddbmm(outer, (self._rows * a.d[:, None]).mT, self._rows, beta=-a.c * a.s, alpha=a.s)
        off.diagonal(dim1=1, dim2=2).zero_()
        grad_d = (self._rows @ off).mul_(self._rows).sum((0, 2))
        grad_v = (self._rows @ (off @ mean.unsqueeze(2))).sum((0, 2))
        return off.square().sum(), pull_back(a, (2 * a.s) * grad_d, (-4 * a.c * a.s) * grad_v, self.form)


class DirectLabelPairs:
    """D_y(w) = Σ_i ‖U_iᵀ A Y‖²_F over pairs of a feature and the label, and its gradient.

    u: (n, m, q).   y: (n, C) label columns.   Each evaluation costs 2·n·m·q·C multiply-adds.
    """

    def __init__(self, u: Tensor, y: Tensor, form: Form) -> None:
        self.form = form
        self._rows = centre_for(form, u).reshape(u.shape[0], -1)
        self._labels = centre_for(form, y)

    def value_and_gradient(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """w: (n,).   Returns D_y, a scalar, and ∂D_y/∂w (n,)."""
        a = measure_weights(w, self.form)
        mean_u, mean_y = self._rows.T @ a.v, self._labels.T @ a.v
        cross = self._rows.T @ (a.d[:, None] * self._labels) - a.c * torch.outer(mean_u, mean_y)
        cross = a.s * cross
        pulled = self._rows @ cross
        grad_d = 2 * (pulled * self._labels).sum(1)
        grad_v = -2 * a.c * (pulled @ mean_y + self._labels @ (cross.T @ mean_u))
        return cross.square().sum(), pull_back(a, a.s * grad_d, a.s * grad_v, self.form)


@torch.no_grad()
def quadratic_forms(rows: Tensor, matrix: Tensor) -> Tensor:
    """xᵀ M x for every row x.   rows: (n, k).   matrix: (k, k).   Returns (n,).

    One buffer serves all parts: fresh ones, with the small results between them, leave holes in the heap that grew to
    the size of rows itself for a million of them.
    """
    result = rows.new_empty(len(rows))
    buffer = rows.new_empty(min(len(rows), ROWS_AT_ONCE), rows.shape[1])
    for part, sums in zip(rows.split(ROWS_AT_ONCE), result.split(ROWS_AT_ONCE), strict=True):
        product = torch.mm(part, matrix, out=buffer[: len(part)]).mul_(part)
        torch.sum(product, 1, out=sums)
    return result


def weighted_covariance(rows: Tensor, a: WeightMeasure, mean: Tensor) -> Tensor:
    """Σ = s·(Uᵀ diag(d) U − c·μ μᵀ) with μ = Uᵀv.   rows: (n, k).   mean: (k,).   Returns (k, k)."""
    total = torch.zeros(rows.shape[1], rows.shape[1], dtype=rows.dtype, device=rows.device)
    for part, d in zip(rows.split(ROWS_AT_ONCE), a.d.split(ROWS_AT_ONCE), strict=True):
        total.addmm_((part * d[:, None]).T, part)
    return total.sub_(torch.outer(mean, mean), alpha=a.c).mul_(a.s)
