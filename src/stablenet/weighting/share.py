"""The dependence as a share of what is possible, so that its size means the same for every network and label.

With functions of unit variance and classes weighed by 1/√frequency, label pairs give the mean correlation ratio

    share(w) = 1/k Σ_j η²_j(w),   η² = share of a function's variance that lies between the classes,

between 0 (the label tells nothing about the features) and 1. Permuting the labels of n samples in C classes leaves
(C − 1)/(n − 1) of it on average: what lies below is chance, and weights that remove chance remove nothing. So the
penalty of uneven weights grows by a multiple of

    doubt = (C − 1)/(n − 1) / √share(1),

chance divided by the correlation: much with few samples, little where the label explains a lot.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stablenet.weighting.fourier import standardize

SMALLEST = 1e-12  # share: below it there is nothing that weights could remove


def unit_functions(u: Tensor) -> Tensor:
    """u (n, m, q) with unit variance in every function, divided by √(m·q): squares then sum to a mean."""
    n, m, q = u.shape
    rows: Tensor = standardize(u.reshape(n, -1)) / (m * q) ** 0.5
    return rows.view(n, m, q)


def unit_labels(labels: Tensor, dtype: torch.dtype) -> Tensor:
    """Columns (n, C) whose covariances with a standardized function square and sum to its explained share.

    labels: (n,) integer classes: one-hot, each class divided by the root of its frequency; (n, C) columns:
    standardized and divided by √C.
    """
    if labels.ndim == 2:
        standard: Tensor = standardize(labels.to(dtype))
        return standard.div(labels.shape[1] ** 0.5)
    found: tuple[Tensor, Tensor, Tensor] = labels.unique(return_inverse=True, return_counts=True)
    _, codes, counts = found
    return torch.nn.functional.one_hot(codes).to(dtype) * (len(labels) / counts.to(dtype)).sqrt()


def chance_share(labels: Tensor) -> float:
    """What permuted labels explain on average: (C − 1)/(n − 1) for classes (n,), 1/(n − 1) for columns (n, C)."""
    freedom = len(labels.unique()) - 1 if labels.ndim == 1 else 1
    return freedom / max(len(labels) - 1, 1)


def doubt(labels: Tensor, share: float) -> float:
    """How little a share that the labels explain is to be trusted (see above)."""
    return chance_share(labels) / math.sqrt(max(share, SMALLEST))
