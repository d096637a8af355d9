"""DFR: the last layer fitted again to samples of which every group has the same number; an oracle."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from stablenet.algorithms.algorithm import Context
from stablenet.algorithms.last_layer import HeldOut, LastLayer
from stablenet.models import Network
from stablenet.randomness import combine
from stablenet.values import Count, OpenShare, Positive, check_fields

STEPS = 500  # of accelerated proximal gradient descent on a convex problem
LARGEST = 1 << 26  # numbers in copies of features


@dataclass(frozen=True, kw_only=True)
class DFRSettings:
    """share: of the training samples, held out of the first stage for the last layer.
    inverse_penalty: C of min ‖W‖₁ + C·Σ CE; the paper's grid is 1, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01.
    repeats: balanced subsets whose last layers are averaged.
    """

    share: OpenShare = 0.2  # the paper has a labelled validation set for it
    inverse_penalty: Positive = 1.0  # the first of the published grid
    repeats: Count = 20  # the authors' published code

    def __post_init__(self) -> None:
        check_fields(self)


class DFR(LastLayer[DFRSettings]):
    r"""min_{W,b} ‖W‖₁ + C·Σ_{i∈B} CE(W·z_i + b, y_i), B as many samples of every group, z standardised features f(x).

    Last Layer Re-Training is Sufficient for Robustness to Spurious Correlations (Kirichenko, Izmailov and Wilson, ICLR
    2023). f is the body of a network trained by cross-entropy; groups are pairs of class and domain. B is drawn anew
    `repeats` times, each group as often as the smallest one that occurs, and the solutions are averaged.

    Departures: B comes from a share of the training samples that is held out of the first stage, where the paper has a
    validation set with group labels; C is a setting, where the paper chooses it by the worst group on half of that
    set. Features are standardised by the held-out samples. Classes are fitted at once and the bias is not penalised,
    where the published code has one-against-all solutions with a penalised one. The last layer is fitted before every
    validation, so that source validation chooses the epoch for it.
    """

    title = "the last layer fitted to equally many samples of every class in every domain"
    settings_type = DFRSettings
    uses_groups = True
    selects_by_groups = True

    def __init__(self, network: Network, settings: DFRSettings, context: Context) -> None:
        super().__init__(network, settings, context, settings.share)

    @torch.no_grad()
    def fit_head(self, rows: HeldOut) -> tuple[Tensor, Tensor, dict[str, float]]:
        mean, deviation = rows.features.mean(0), rows.features.std(0, correction=0)
        scale = torch.where(deviation > 0, 1 / deviation, 0.0)
        z = (rows.features - mean) * scale
        chosen = draw_balanced(
            rows.y * self.context.num_domains + rows.domain, self.settings.repeats, self.context.seed
        )
        weights, biases = fit_sparse(z, rows.y, chosen, self.context.num_classes, self.settings.inverse_penalty)
        weight = weights.mean(0) * scale
        bias = biases.mean(0) - weight @ mean
        return weight, bias, {"balanced_samples": float(chosen.shape[1])}


def draw_balanced(group: Tensor, repeats: int, seed: int) -> Tensor:
    """Rows (repeats, groups · size of the smallest) of balanced subsets of samples with these groups (n,)."""
    present, counts = group.unique(return_counts=True)
    smallest = int(counts.min())
    chosen = []
    for repeat in range(repeats):
        mixed = combine(seed, repeat, torch.arange(len(group), device=group.device)).argsort(stable=True)
        chosen.append(torch.cat([mixed[group[mixed] == each][:smallest] for each in present]))
    return torch.stack(chosen)


def fit_sparse(z: Tensor, y: Tensor, chosen: Tensor, classes: int, inverse_penalty: float) -> tuple[Tensor, Tensor]:
    """argmin ‖W‖₁ + C·Σ_{i∈B} CE(W·z_i + b, y_i) for each row B of chosen.

    z: (n, m) standardised.   y: (n,).   chosen: (repeats, k) rows of z.
    Returns W (repeats, classes, m) and b (repeats, classes).
    """
    parts = max(1, LARGEST // (chosen.shape[1] * (z.shape[1] + 1)))  # subsets whose copies fit into memory at once
    heads = torch.cat([_fit_subsets(z, y, some, classes, inverse_penalty) for some in chosen.split(parts)])
    return heads[:, :, :-1], heads[:, :, -1]


def _fit_subsets(z: Tensor, y: Tensor, chosen: Tensor, classes: int, inverse_penalty: float) -> Tensor:
    """`fit_sparse` for all subsets at once, weights and biases in one tensor (repeats, classes, m + 1).

    Accelerated proximal gradient descent (FISTA), whose momentum starts again wherever it points against the descent.
    """
    rows = torch.cat([z[chosen], z.new_ones(*chosen.shape, 1)], 2)
    truth = functional.one_hot(y[chosen], classes).to(rows)
    step = 2 / (inverse_penalty * torch.linalg.matrix_norm(rows, 2)[:, None, None].square())
    head = ahead = rows.new_zeros(len(rows), classes, rows.shape[2])
    momentum = torch.ones_like(step)
    for _ in range(STEPS):
        misses = (rows @ ahead.mT).softmax(2) - truth
        after = ahead - step * inverse_penalty * misses.mT @ rows
        after[:, :, :-1] = _shrink(after[:, :, :-1], step)
        uphill = ((ahead - after) * (after - head)).sum((1, 2), keepdim=True) > 0
        following = torch.where(uphill, 1.0, (1 + (1 + 4 * momentum.square()).sqrt()) / 2)
        ahead = after + torch.where(uphill, 0.0, (momentum - 1) / following) * (after - head)
        head, momentum = after, following
    return head


def _shrink(values: Tensor, least: Tensor) -> Tensor:
    return values.sign() * (values.abs() - least).clamp_min(0)
