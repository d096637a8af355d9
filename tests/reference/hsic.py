"""The Hilbert–Schmidt independence criterion by its definition, and the paper's statistic by its equation."""

from __future__ import annotations

import numpy as np


def standardise(x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / np.sqrt(((x - x.mean()) ** 2).mean())


def biased_hsic(x: np.ndarray, y: np.ndarray, sigma: float) -> float:
    """tr(K H L H)/n² with Gaussian kernels exp(−(x−x')²/2σ²).   x, y: (n,)."""
    n = len(x)
    kernel_x, kernel_y = (np.exp(-((v[:, None] - v[None, :]) ** 2) / (2 * sigma**2)) for v in (x, y))
    centring = np.eye(n) - np.ones((n, n)) / n
    return float(np.trace(kernel_x @ centring @ kernel_y @ centring)) / n**2


def slow_statistic(u: np.ndarray, v: np.ndarray, weights: np.ndarray) -> float:
    """‖Σ‖²_F entry by entry.   u, v: (n, q).   weights: (n,).

    Equal weights give Eq. 3, cross-covariance, with its 1/(n−1).
    """
    p = weights / weights.sum()
    total = 0.0
    for j in range(u.shape[1]):
        for k in range(v.shape[1]):
            mean_u = sum(p[i] * u[i, j] for i in range(len(p)))
            mean_v = sum(p[i] * v[i, k] for i in range(len(p)))
            covariance = sum(p[i] * (u[i, j] - mean_u) * (v[i, k] - mean_v) for i in range(len(p)))
            total += (covariance / (1 - sum(p**2))) ** 2
    return total
