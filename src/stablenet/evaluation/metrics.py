"""Figures of a classifier from counts per domain and class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

MOST_DOMAINS = 20  # listed one by one; sets with more (MNIST-M has 200) have a handful of images in each


class Tally:
    """Right and all predictions per domain and class, summed on the device; reading the figures waits for it."""

    def __init__(self, num_domains: int, num_classes: int, device: torch.device) -> None:
        self._shape = (num_domains, num_classes)
        self._counts = torch.zeros(2, num_domains * num_classes, dtype=torch.int64, device=device)
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._weighted = torch.zeros(4, dtype=torch.float64, device=device)  # Σw, Σw², Σw·right, Σw·loss

    def add(self, logits: Tensor, y: Tensor, domain: Tensor, weights: Tensor | None = None) -> None:
        """logits: (b, classes).   y, domain: (b,).   weights: (b,) for figures under weights beside the plain ones."""
        cell = domain * self._shape[1] + y
        right = (logits.argmax(1) == y).long()
        self._counts.index_add_(1, cell, torch.stack([right, torch.ones_like(right)]))
        self._loss += functional.cross_entropy(logits.float(), y, reduction="sum").double()
        if weights is not None:
            losses = functional.cross_entropy(logits.float(), y, reduction="none")
            terms = torch.stack([torch.ones_like(losses), weights, right, losses])
            self._weighted += terms.double() @ weights.double()

    def tensors(self) -> tuple[Tensor, ...]:
        """What several processes sum."""
        return self._counts, self._loss, self._weighted

    def figures(self, domains: Sequence[str], classes: Sequence[str]) -> dict[str, Any]:
        """accuracy over all samples, mean over domains, worst (domain, class) group, per domain, per class, loss.

        With weights also weighted_accuracy, weighted_loss and the effective number of samples, weighted_count.
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
    """Accuracy by name, of what has samples at all."""
    pairs = zip(names, right.tolist(), total.tolist(), strict=True)
    return {name: hits / number for name, hits, number in pairs if number}
