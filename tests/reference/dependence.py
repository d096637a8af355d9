"""The statistic by its definition: plain loops over samples, features and functions, in float64."""

from __future__ import annotations

import numpy as np


def covariance_of_weighted_features(a: np.ndarray, b: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Eq. 6, sigmaabw.   a: (n, q).   b: (n, r).   w: (n,).   Returns (q, r)."""
    n, q, r = len(w), a.shape[1], b.shape[1]
    sigma = np.zeros((q, r))
    for x in range(q):
        for y in range(r):
            mean_a = sum(w[k] * a[k, x] for k in range(n)) / n
            mean_b = sum(w[k] * b[k, y] for k in range(n)) / n
            for k in range(n):
                sigma[x, y] += (w[k] * a[k, x] - mean_a) * (w[k] * b[k, y] - mean_b) / (n - 1)
    return sigma


def covariance_under_weights(a: np.ndarray, b: np.ndarray, w: np.ndarray) -> np.ndarray:
    """E[(a − E a)(b − E b)] under the distribution that gives sample k the probability w_k / Σw."""
    n, q, r = len(w), a.shape[1], b.shape[1]
    p = w / w.sum()
    sigma = np.zeros((q, r))
    for x in range(q):
        for y in range(r):
            mean_a = sum(p[k] * a[k, x] for k in range(n))
            mean_b = sum(p[k] * b[k, y] for k in range(n))
            for k in range(n):
                sigma[x, y] += p[k] * (a[k, x] - mean_a) * (b[k, y] - mean_b)
    return sigma


COVARIANCES = {"paper": covariance_of_weighted_features, "covariance": covariance_under_weights}


def pairwise(u: np.ndarray, w: np.ndarray, form: str) -> float:
    """Eq. 7, learning_weight: squared covariances summed over i < j.   u: (n, m, q)."""
    m = u.shape[1]
    return sum(float((COVARIANCES[form](u[:, i], u[:, j], w) ** 2).sum()) for i in range(m) for j in range(i + 1, m))


def with_label(u: np.ndarray, labels: np.ndarray, w: np.ndarray, form: str) -> float:
    """The same between every feature and the one-hot label."""
    classes = np.unique(labels)
    y = (labels[:, None] == classes[None, :]).astype(float)
    return sum(float((COVARIANCES[form](u[:, i], y, w) ** 2).sum()) for i in range(u.shape[1]))
