"""Domains found where none are named: samples clustered by the statistics of their shallow feature maps."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stablenet.errors import UserError

Labels = NDArray[np.int64]
RESTARTS = 10  # of k-means; the best one counts


def cluster_styles(styles: NDArray[np.float64], number: int, components: int, seed: int) -> Labels:
    """Principal components of styles (n, m), then k-means: a cluster (n,) in 0 … number−1 for every sample."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    if not np.isfinite(styles).all():
        raise UserError("the features to be clustered are not finite: lower train.learning_rate")
    different = count_different(styles, number)
    if different < number:
        raise UserError(
            f"{number} pseudo-domains cannot be found in {len(styles)} training images of {different} different "
            "styles: lower method.parameters.pseudo_domains"
        )
    reduction = PCA(min(components, *styles.shape), svd_solver="covariance_eigh")
    found = KMeans(number, n_init=RESTARTS, random_state=seed).fit_predict(reduction.fit_transform(styles))
    return np.asarray(found, np.int64)


def count_different(rows: NDArray[np.float64], enough: int) -> int:
    """How many different ones there are among rows (n, m), counted up to `enough`: sorting all would take seconds."""
    count = 0
    while len(rows) and count < enough:
        rows = rows[(rows != rows[0]).any(1)]
        count += 1
    return count


def match_labels(found: Labels, before: Labels, number: int) -> Labels:
    """Rename clusters (n,) so that as many samples as possible keep the label they had before (n,)."""
    from scipy.optimize import linear_sum_assignment

    shared = np.zeros((number, number), np.int64)
    np.add.at(shared, (found, before), 1)
    _, name = linear_sum_assignment(shared, maximize=True)
    return np.asarray(name[found], np.int64)


def weigh_domains(labels: Tensor, number: int) -> Tensor:
    """One over the size of every domain, with mean one: (n,) labels -> (number,); an empty domain counts as one."""
    inverse = 1 / torch.bincount(labels, minlength=number).clamp(min=1).float()
    return inverse / inverse.mean()
