"""Evidence, from training data alone, of whether context and label are tied: what `recommended.decide` decides by.

Two signs, both cheap and without a network:

- THE BORDER: how much of the label colours and textures predict, at the border of the image and in all of it. Where the
  border knows as much as the whole image, it is the surroundings that predict the label; where the whole knows more,
  it is the object.
- THE CONTEXTS, where some are named (domains, sites, seasons): how much of the label they predict by themselves.

Sums over samples are all that is kept, so that sets of any size cost the same, and several processes add theirs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.errors import UserError
from stablenet.weighting import distributed
from stablenet.weighting.border import WIDTH, UnitRange, describe_images

MOST_AXES = 64  # principal axes that may predict the label; more would only add noise
ROWS_PER_AXIS = 10
LEFT_OUT = 1e-4  # share of the variance that the axes may miss


@dataclass(frozen=True)
class Evidence:
    """border, whole: share of the label's variance that colours and textures predict there, less what chance gives,
    0 to 1; None where the inputs are no images.
    contexts: share of the label's entropy that the named contexts predict, each sample from the others, less chance;
        None where fewer than two are named.
    """

    border: float | None = None
    whole: float | None = None
    contexts: float | None = None


class EvidenceSums:
    """Collects the evidence of a training set, batch by batch.

    >>> sums = EvidenceSums(num_classes=2, num_contexts=2)
    >>> y = torch.arange(40) % 2
    >>> sums.add(y, images=y[:, None, None, None] * torch.rand(40, 3, 8, 8), contexts=y)
    >>> found = sums.weigh()
    >>> round(found.contexts, 2)
    0.95
    """

    def __init__(self, num_classes: int, num_contexts: int = 0, shared: bool = False) -> None:
        """shared: whether each of several processes adds its own samples; otherwise each adds all of them."""
        self._classes, self._contexts, self._shared = num_classes, num_contexts, shared
        self._unit = UnitRange(shared)
        self._moments: Tensor | None = None  # of border, whole image and label: two sums of outer products
        self._table: Tensor | None = None

    @torch.no_grad()
    def add(self, labels: Tensor, images: Tensor | None = None, contexts: Tensor | None = None) -> None:
        """labels: (b,).   images: (b, c, h, w) of any normalization.   contexts: (b,) below num_contexts."""
        least, most = (int(labels.min()), int(labels.max())) if len(labels) else (0, 0)
        if least < 0 or most >= self._classes:
            raise UserError(
                f"labels must be classes from 0 on, below num_classes={self._classes}, got {least} to {most}"
            )
        if images is not None and images.ndim == 4 and images.is_floating_point():
            self.add_features(labels, *describe_images(self._unit(images)))
        if contexts is not None and self._contexts > 1:
            cell = contexts.long() * self._classes + labels.long()
            count = torch.bincount(cell, minlength=self._contexts * self._classes).double()
            self._table = count if self._table is None else self._table + count

    @torch.no_grad()
    def add_features(self, labels: Tensor, whole: Tensor, border: Tensor) -> None:
        """whole, border: (b, 36) as `describe_images` gives them."""
        truth = torch.nn.functional.one_hot(labels.long(), self._classes).double()
        ones = torch.ones(len(labels), 1, dtype=torch.float64, device=labels.device)
        rows = [torch.cat([ones, z.double(), truth], 1) for z in (whole, border)]
        moments = torch.stack([row.T @ row for row in rows])
        self._moments = moments if self._moments is None else self._moments + moments

    @torch.no_grad()
    def weigh(self) -> Evidence:
        """The evidence of all that was added; rounded, so that the order of the sums does not show."""
        border = whole = contexts = None
        if self._moments is not None:
            whole, border = (round(explained_share(moments, WIDTH), 6) for moments in self._join(self._moments))
        if self._table is not None:
            table = self._join(self._table).view(self._contexts, self._classes)
            contexts = round(explained_by_table(table), 6) if int((table.sum(1) > 0).sum()) > 1 else None
        return Evidence(border, whole, contexts)

    def _join(self, sums: Tensor) -> Tensor:
        joined = sums.clone()
        if self._shared:
            distributed.sum_in_place(joined)
        return joined


def explained_share(moments: Tensor, width: int) -> float:
    """Share of the variance of one-hot labels that a linear function of features explains, less chance.

    moments: (1 + m + C, 1 + m + C), the sum over samples of the outer product of (1, features, one-hot label).
    width: m. The features enter as their leading principal axes, at most one for ten samples. Random labels are
    explained by k/(n − 1) on average with k axes.
    """
    n = moments[0, 0]
    mean = moments[0] / n
    covariance = moments / n - torch.outer(mean, mean)
    deviation = covariance.diagonal()[1 : 1 + width].clamp_min(0).sqrt()
    slope = torch.where(deviation > 1e-9, 1 / deviation.clamp_min(1e-9), 0.0)
    correlation = slope[:, None] * covariance[1 : 1 + width, 1 : 1 + width] * slope
    variances, axes = torch.linalg.eigh(correlation)
    variances, axes = variances.flip(0).clamp_min(0), axes.flip(1)
    total = float(covariance.diagonal()[1 + width :].sum())
    if total <= 0 or float(variances.sum()) <= 0:
        return 0.0
    missed = 1 - variances.cumsum(0) / variances.sum()
    kept = int((missed > LEFT_OUT).sum()) + 1
    count = max(1, min(MOST_AXES, int(n) // ROWS_PER_AXIS, kept))
    shared = axes[:, :count].T @ (slope[:, None] * covariance[1 : 1 + width, 1 + width :])
    raw = float((shared.square() / variances[:count, None].clamp_min(1e-12)).sum()) / total
    chance = count / max(float(n) - 1, 1.0)
    return max(0.0, (raw - chance) / (1 - chance)) if chance < 1 else 0.0


def explained_by_table(table: Tensor) -> float:
    """Share of the label's entropy that contexts predict, by counts.   table: (contexts, classes).

    Every sample is predicted by the others of its context, p(y | k) = (n_ky + p(y)·√C)/(n_k + √C), so that contexts of
    few samples do not predict by chance. Two standard deviations of what independence gives are taken off: 2nH·U of
    counts is χ² with (K − 1)(C − 1) degrees of freedom, whose deviation is √(2(K − 1)(C − 1)).
    """
    n = table.sum()
    prior = table.sum(0) / n
    seen = prior > 0
    table, prior = table[table.sum(1) > 0][:, seen], prior[seen]
    entropy = -float((prior * prior.log()).sum())
    if entropy <= 0:
        return 0.0
    strength = float(len(prior)) ** 0.5
    others = (table - 1 + strength * prior).clamp_min(1e-12)  # where there is none of a cell, it does not count
    predicted = others.log() - (table.sum(1, keepdim=True) - 1 + strength).clamp_min(1e-12).log()
    loss = -float((table * predicted).sum() / n)
    freedom = (len(table) - 1) * (len(prior) - 1)
    chance = math.sqrt(2 * freedom) / (2 * float(n) * entropy)
    return max(0.0, 1 - loss / entropy - 2 * chance)
