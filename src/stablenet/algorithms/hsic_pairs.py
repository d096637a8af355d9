r"""The exact biased HSIC of all feature pairs under weights, in the Gram form of `stablenet.weighting.gram`.

With p = w/Σw and K_i the Gaussian kernel matrix of feature i, the weighted HSIC of a pair is

    HSIC_ij(p) = pᵀ(K_i∘K_j)p − 2·pᵀ(K_i p ∘ K_j p) + (pᵀK_i p)(pᵀK_j p)

which for equal weights is tr(K_i H K_j H)/n². Summed over i < j it is the dependence of the Fourier features with
their products U_i U_iᵀ replaced by K_i, which they estimate: D/q² → Σ_{i<j} HSIC_ij as q grows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stablenet.errors import UserError
from stablenet.weighting.fourier import median_distance

MOST_NUMBERS = 2**28  # in the kernel matrices of a batch, n²·m: 1 GiB


class HsicPairs:
    """Σ_{i<j} HSIC_ij(w) and its gradient, for the weight solver.

    z: (n, m) features.   bandwidth: (m,) σ_i of the kernels exp(−(x − x')²/2σ_i²); the median distance when left out.
    Memory and each evaluation grow as n²·m: small n only.
    """

    def __init__(self, z: Tensor, bandwidth: Tensor | None = None) -> None:
        check_size(*z.shape)
        scale = median_distance(z) if bandwidth is None else bandwidth
        # Centred, which changes the rounding alone: equal shifts of a kernel's functions have no covariance.
        kernels = centre_kernels(gaussian_kernels(z / scale))  # (m, n, n)
        self._pairs = kernels.sum(0).square() - torch.linalg.vecdot(kernels, kernels, dim=0)
        self._rows = kernels.view(-1, len(z))  # (m·n, n): one product for all kernels

    def value_and_gradient(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """w: (n,).   Returns the sum over pairs, a scalar, and its gradient (n,)."""
        size = w.sum()
        p = w / size
        each = (self._rows @ p).view(-1, len(p))  # (m, n), K_i p
        total, norms = each.sum(0), each @ p
        crossed = total.square() - each.square().sum(0)
        pairs_p = self._pairs @ p
        value = p @ (pairs_p - 2 * crossed) + norms.sum().square() - norms.square().sum()
        mixed = (p * (total - each)).flatten() @ self._rows  # Σ_i K_i (p∘(Kp − K_i p)), as every K_i is symmetric
        rest = (norms.sum() - norms) @ each
        slope = pairs_p - crossed - 2 * mixed + 2 * rest
        return 0.5 * value, (slope - p @ slope) / size  # through p = w/Σw


def gaussian_kernels(z: Tensor) -> Tensor:
    """exp(−(x_a − x_b)²/2) of every column of z (n, m).   Returns (m, n, n)."""
    columns = z.T.contiguous()  # or the result would inherit its order in memory, and every product be slow
    return (columns[:, :, None] - columns[:, None, :]).square_().mul_(-0.5).exp_()


def centre_kernels(kernels: Tensor) -> Tensor:
    """H K_i H with H = I − 11ᵀ/n, in place.   kernels: (m, n, n)."""
    rows = kernels.mean(2, keepdim=True)
    everything = rows.mean(1, keepdim=True)
    return kernels.sub_(rows).sub_(rows.mT).add_(everything)


def check_size(n: int, m: int) -> None:
    """Refuse what would fill the memory before it does."""
    if n * n * m > MOST_NUMBERS:
        raise UserError(
            f"exact HSIC of {m} features over {n} samples needs {n * n * m * 4 / 2**30:.1f} GiB of kernel matrices, at "
            f"most {MOST_NUMBERS * 4 / 2**30:.0f} GiB are allowed: choose smaller batches, fewer features (taps), or "
            "the method stablenet, whose Fourier features are the same at a fraction of the cost"
        )
