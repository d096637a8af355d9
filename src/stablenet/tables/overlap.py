"""Columns that determine each other, found before anybody asks for their independence.

Weights can only redistribute the rows there are. Where two columns are near copies (temperature, felt temperature), or
one follows from the other, hardly a row shows one without the other, and asking for their independence costs effective
sample size for nothing. Such columns are taken together: as a group they are made independent of the rest, not of each
other. On the bicycles of results/tables that raises the effective sample from 24 to 37 %.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

RANK_TOLERANCE = 1e-6  # axes of a block with less than this share of its largest variance are rounding


def group_blocks(sigma: Tensor, owner: Tensor, size: float, limit: float) -> Tensor:
    """Join blocks with a canonical correlation above the limit, directly or through others.

    sigma: (k, k) covariance of all functions.   owner: (k,) the block each is a function of.   size: the number
    of rows; in few rows large correlations come by chance, and are adjusted for the functions as R² is.
    Returns (m,) the group of each block, numbered from 0.
    """
    count = int(owner.max()) + 1
    own = [(owner == i).nonzero().squeeze(1) for i in range(count)]
    sigma = sigma.to(torch.float64)
    white = [_whitening(sigma[columns][:, columns]) for columns in own]
    close = np.eye(count, dtype=bool)
    for i in range(count):
        for j in range(i + 1, count):
            cross = white[i].T @ sigma[own[i]][:, own[j]] @ white[j]
            free = size - sum(cross.shape)
            if cross.numel() and free > size / 2:  # with fewer rows there is no telling
                squared = float(torch.linalg.matrix_norm(cross, 2)) ** 2
                close[i, j] = 1 - (1 - squared) * size / free > limit**2
    _, groups = connected_components(close, directed=False)
    return torch.from_numpy(groups.astype(np.int64))


def _whitening(sigma: Tensor) -> Tensor:
    """W (k, r) with Wᵀ Σ W = 1, over the axes that have variance; r = 0 for constant blocks.   sigma: (k, k)."""
    values, axes = torch.linalg.eigh(sigma)
    kept = values > RANK_TOLERANCE * values.max().clamp_min(torch.finfo(values.dtype).tiny)
    whitening: Tensor = axes[:, kept] / values[kept].sqrt()
    return whitening
