"""Metrics of a classifier: accuracy per domain and class, calibration, and statistics over a few seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

MOST_DOMAINS = 20  # listed individually; sets with more (MNIST-M has 200) have only a few images in each
BINS = 15  # of equal width; the usual number for deep networks
CONFIDENCE = 0.95


class GroupCounts:
    """Counts of correct and of all predictions per domain and class, kept on the device; `figures` synchronizes."""

    def __init__(self, num_domains: int, num_classes: int, device: torch.device) -> None:
        self._shape = (num_domains, num_classes)
        self._counts = torch.zeros(2, num_domains * num_classes, dtype=torch.int64, device=device)
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._weighted = torch.zeros(4, dtype=torch.float64, device=device)  # Σw, Σw², Σw·right, Σw·loss

    def add(self, logits: Tensor, y: Tensor, domain: Tensor, weights: Tensor | None = None) -> None:
        """Add a batch. logits: (b, classes).   y, domain: (b,).   weights: (b,), adds weighted metrics."""
        cell = domain * self._shape[1] + y
        right = (logits.argmax(1) == y).long()
        self._counts.index_add_(1, cell, torch.stack([right, torch.ones_like(right)]))
        self._loss += functional.cross_entropy(logits.float(), y, reduction="sum").double()
        if weights is not None:
            losses = functional.cross_entropy(logits.float(), y, reduction="none")
            terms = torch.stack([torch.ones_like(losses), weights, right, losses])
            self._weighted += terms.double() @ weights.double()

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors to sum over processes."""
        return self._counts, self._loss, self._weighted

    def figures(self, domains: Sequence[str], classes: Sequence[str]) -> dict[str, Any]:
        """Loss and accuracy: overall, mean over domains, worst (domain, class) group, per domain and per class.

        With weights also weighted_accuracy, weighted_loss and the effective sample size, weighted_count.
        """
        counts = self._counts.cpu().view(2, *self._shape)
        right, total = counts[0], counts[1]
        count = int(total.sum())
        per_domain = _shares(right.sum(1), total.sum(1), domains)
        figures: dict[str, Any] = {
            "loss": float(self._loss) / count,
            "accuracy": int(right.sum()) / count,
            "mean_domain_accuracy": sum(per_domain.values()) / len(per_domain),
            "worst_group_accuracy": float((right[total > 0] / total[total > 0]).min()),
            "per_class": _shares(right.sum(0), total.sum(0), classes),
            "count": count,
        }
        if len(per_domain) <= MOST_DOMAINS:
            figures["per_domain"] = per_domain
        mass, squares, hits, losses = self._weighted.tolist()
        if mass:
            figures |= {"weighted_accuracy": hits / mass, "weighted_loss": losses / mass}
            figures["weighted_count"] = mass**2 / squares
        return figures


def _shares(right: Tensor, total: Tensor, names: Sequence[str]) -> dict[str, float]:
    """Accuracy by name, for those with samples."""
    pairs = zip(names, right.tolist(), total.tolist(), strict=True)
    return {name: hits / number for name, hits, number in pairs if number}


def calibration_error(probabilities: Tensor, y: Tensor, bins: int = BINS) -> float:
    r"""Expected calibration error Σ_b n_b/n·|accuracy_b − confidence_b|, with bins over the largest probability.

    probabilities: (n, classes), rows sum to one.   y: (n,) class.
    """
    confidence, predicted = probabilities.double().max(1)
    right = (predicted == y).double()
    number = (confidence * bins).ceil().long().clamp(1, bins) - 1  # bins are (k/bins, (k + 1)/bins]
    gap = torch.zeros(bins, dtype=torch.float64).index_add_(0, number, right - confidence)
    return float(gap.abs().sum()) / len(y)


@dataclass(frozen=True)
class Spread:
    """Values with their mean and sample standard deviation (n − 1)."""

    values: tuple[float, ...]
    mean: float
    deviation: float


@dataclass(frozen=True)
class Paired:
    """Differences per seed. low, high: 95 % confidence interval of their mean by Student's t.

    The interval assumes normally distributed differences, and is wide for three of them.
    """

    differences: Spread
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def summarize(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation of at least two values."""
    return Spread(tuple(values), fmean(values), stdev(values))


def compare_pairs(ours: Sequence[float], theirs: Sequence[float]) -> Paired:
    """Statistics of the paired differences ours − theirs."""
    from scipy.stats import t

    differences = summarize([a - b for a, b in zip(ours, theirs, strict=True)])
    count = len(differences.values)
    reach = float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * differences.deviation / math.sqrt(count)
    return Paired(differences, differences.mean - reach, differences.mean + reach)
