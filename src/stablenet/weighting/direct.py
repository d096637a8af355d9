"""The statistic by its definition: the (m·q)² covariance matrix. The cheaper way where n > m·q."""

from __future__ import annotations

import torch
from torch import Tensor

from stablenet.weighting.forms import Form, WeightMeasure, centre_for, measure_weights, pull_back

# Rows whose products are held at once: bounds the extra memory at ROWS_AT_ONCE × m·q numbers.
ROWS_AT_ONCE = 16_384


class DirectPairs:
    """D(w) = Σ_{i<j} ‖Σ_ij‖²_F over feature pairs (Eq. learning_weight) and its gradient, from Σ itself.

    u: (n, m, q).   Each evaluation costs 2·n·(m·q)² multiply-adds.
    """

    def __init__(self, u: Tensor, form: Form) -> None:
        self.form = form
        self.n, self.m, self.q = u.shape
        self._rows = centre_for(form, u).reshape(self.n, -1)

    def value_and_gradient(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """w: (n,).   Returns D, a scalar, and ∂D/∂w (n,)."""
        a = measure_weights(w, self.form)
        mean = self._rows.T @ a.v
        off = weighted_covariance(self._rows, a, mean)
        clear_diagonal_blocks(off, self.m, self.q)
        grad_d = torch.cat([((part @ off) * part).sum(1) for part in self._rows.split(ROWS_AT_ONCE)])
        grad_v = self._rows @ (off @ mean) * (-2 * a.c)
        value = 0.5 * off.square().sum()
        return value, pull_back(w, a.s * grad_d, a.s * grad_v, self.form)


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
        return cross.square().sum(), pull_back(w, a.s * grad_d, a.s * grad_v, self.form)


def weighted_covariance(rows: Tensor, a: WeightMeasure, mean: Tensor) -> Tensor:
    """Σ = s·(Uᵀ diag(d) U − c·μ μᵀ) with μ = Uᵀv.   rows: (n, k).   mean: (k,).   Returns (k, k)."""
    total = torch.zeros(rows.shape[1], rows.shape[1], dtype=rows.dtype, device=rows.device)
    for part, d in zip(rows.split(ROWS_AT_ONCE), a.d.split(ROWS_AT_ONCE), strict=True):
        total.addmm_((part * d[:, None]).T, part)
    return total.sub_(torch.outer(mean, mean), alpha=a.c).mul_(a.s)


def clear_diagonal_blocks(sigma: Tensor, m: int, q: int) -> None:
    """Zero, in place, the blocks of Σ (m·q, m·q) in which a feature meets itself."""
    sigma.view(m, q, m, q).diagonal(dim1=0, dim2=2).zero_()
