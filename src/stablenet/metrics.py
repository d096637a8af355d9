"""Metrics of a classifier: accuracy per domain, class and group, calibration, and statistics over a few seeds.

A group is a class in a context: a (domain, class) pair, or any integer per sample (`count_groups`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from stablenet.weighting.solver import effective_sample_size

MOST_DOMAINS = 20  # listed individually; sets with more (MNIST-M has 200) have only a few images in each
SIDES = ("lowered", "raised")  # pseudo-contexts: usual pairs of class and context, and rare ones, as weights see them
BINS = 15  # of equal width; the usual number for deep networks
CONFIDENCE = 0.95
SMALLEST_GROUP = 10  # samples: the interval of a smaller group's accuracy spans 40 points and more


class GroupCounts:
    """Counts of correct and of all predictions per domain and class, kept on the device; `figures` synchronizes."""

    def __init__(self, num_domains: int, num_classes: int, device: torch.device) -> None:
        self._shape = (num_domains, num_classes)
        self._counts = torch.zeros(2, num_domains * num_classes, dtype=torch.int64, device=device)
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._sides = torch.zeros(2, len(SIDES) * num_classes, dtype=torch.int64, device=device)
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
            side = (weights > 1).long() * self._shape[1] + y
            self._sides.index_add_(1, side, torch.stack([right, torch.ones_like(right)]))

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors to sum over processes."""
        return self._counts, self._loss, self._weighted, self._sides

    def figures(self, domains: Sequence[str], classes: Sequence[str]) -> dict[str, Any]:
        """Loss and accuracy: overall, mean over domains, per domain and per class, and of the groups.

        worst_group_accuracy is the lowest accuracy of all groups, however small; `groups`: see `describe_groups`.
        With weights also weighted_accuracy, weighted_loss and the effective sample size, weighted_count; and
        pseudo_groups, the same as `groups` for classes among samples whose weight is raised, and lowered or kept.
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
            "groups": describe_groups(right, total, domains, classes),
        }
        if len(per_domain) <= MOST_DOMAINS:
            figures["per_domain"] = per_domain
        mass, squares, hits, losses = self._weighted.tolist()
        if mass:
            figures |= {"weighted_accuracy": hits / mass, "weighted_loss": losses / mass}
            figures["weighted_count"] = mass**2 / squares
            right, total = self._sides.cpu().view(2, len(SIDES), -1)
            figures["pseudo_groups"] = describe_groups(right, total, SIDES, classes)
        return figures


def effective_share(weights: Tensor | NDArray[np.float64]) -> float:
    """Effective sample size as a share of the samples.   weights: (n,)."""
    return float(effective_sample_size(weights)) / len(weights)


def wilson_interval(right: int, count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Wilson's score interval of a share: of use for few samples and for shares near 0 and 1, unlike p ± 1.96 s.

    It is the interval of one group; that a group is the worst of many is not accounted for.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, spread = right / count, z * z / count
    centre = (share + spread / 2) / (1 + spread)
    reach = math.sqrt(share * (1 - share) * spread + spread * spread / 4) / (1 + spread)
    return max(0.0, centre - reach), min(1.0, centre + reach)


@dataclass(frozen=True)
class GroupSummary:
    """Accuracies over groups that have samples.

    worst: number of the group with the lowest accuracy among those of at least `SMALLEST_GROUP` samples, or of all
    where all are smaller; among equal ones the largest.   lowest: accuracy of any group, however small.
    mean: over groups.   gap: accuracy of all samples minus that of the worst group.   small: groups below that size.
    """

    worst: int
    accuracy: float
    count: int
    lowest: float
    mean: float
    gap: float
    groups: int
    small: int


def count_groups(right: Tensor, group: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Right and all predictions per group, (number,) each.   right: (n,) bool.   group: (n,) int64 in 0..number-1."""
    return torch.bincount(group[right], minlength=number), torch.bincount(group, minlength=number)


def summarize_groups(right: Tensor, total: Tensor) -> GroupSummary:
    """right, total: (groups,) right and all predictions of each group; some total is positive."""
    there = [(hits / count, -count, k) for k, (hits, count) in enumerate(_pairs(right, total)) if count]
    large = [entry for entry in there if -entry[1] >= SMALLEST_GROUP]
    accuracy, negative, worst = min(large or there)
    return GroupSummary(
        worst=worst,
        accuracy=accuracy,
        count=-negative,
        lowest=min(there)[0],
        mean=fmean(entry[0] for entry in there),
        gap=int(right.sum()) / int(total.sum()) - accuracy,
        groups=len(there),
        small=len(there) - len(large),
    )


def describe_groups(right: Tensor, total: Tensor, domains: Sequence[str], classes: Sequence[str]) -> dict[str, Any]:
    """The groups of class and context as JSON values.   right, total: (domains, classes) counts.

    worst {domain, class, accuracy, count, low, high (95 % Wilson interval), small (whether it has fewer than
    `SMALLEST_GROUP` samples, as all others then have)}, mean, gap, number (of groups with samples), small (how many
    groups are), contexts (domains with samples); and up to 20 domains per_group {domain: {class: {right, count}}}.
    """
    found = summarize_groups(right.flatten(), total.flatten())
    domain, label = divmod(found.worst, len(classes))
    low, high = wilson_interval(int(right[domain, label]), found.count)
    contexts = [k for k in range(len(domains)) if total[k].any()]
    described: dict[str, Any] = {
        "worst": {
            "domain": domains[domain],
            "class": classes[label],
            "accuracy": found.accuracy,
            "count": found.count,
            "low": low,
            "high": high,
            "small": found.count < SMALLEST_GROUP,
        },
        "mean": found.mean,
        "gap": found.gap,
        "number": found.groups,
        "small": found.small,
        "contexts": len(contexts),
    }
    if len(contexts) <= MOST_DOMAINS:
        pairs = {domains[k]: zip(classes, _pairs(right[k], total[k]), strict=True) for k in contexts}
        described["per_group"] = {
            name: {label: {"right": pair[0], "count": pair[1]} for label, pair in cells if pair[1]}
            for name, cells in pairs.items()
        }
    return described


def _pairs(right: Tensor, total: Tensor) -> list[tuple[int, int]]:
    return list(zip(right.tolist(), total.tolist(), strict=True))


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
