"""The last layer fitted again: what AFR and DFR share, a network trained on most samples, and both methods."""

from __future__ import annotations

from abc import abstractmethod
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from stablenet.algorithms.algorithm import Algorithm, Context, StepOutput, TrainingSet, classify
from stablenet.data.loader import Batch
from stablenet.errors import UserError
from stablenet.long_work import count_steps
from stablenet.models import Network
from stablenet.models.taps import LAST
from stablenet.randomness import combine
from stablenet.values import Count, NonNegative, OpenShare, Positive, Whole, check_fields
from stablenet.weighting import effective_sample_size

S = TypeVar("S")


class HeldOutRows(NamedTuple):
    """features: (n, width) float32.   y, domain: (n,)."""

    features: Tensor
    y: Tensor
    domain: Tensor


class LastLayer(Algorithm[S]):
    """A body and a first last layer are trained by cross-entropy; the network's own last layer is fitted, not trained.

    Before every validation the features of the held-out samples are read, without augmentation, and `fit_head` gives
    the layer that predicts. Held-out samples are in the batches with weight 0, so that shapes stay the same: their
    labels train nothing, while BatchNorm's statistics see their images.
    """

    one_plain_pass = False  # the loss is that of another last layer than the network's
    replayable = True
    several_processes = False  # the last layer is fitted to all held-out samples, and a process reads its share

    kept: Tensor

    def __init__(self, network: Network, settings: S, context: Context, share: float) -> None:
        super().__init__(network, settings, context)
        self.first = deepcopy(network.head)
        network.head.requires_grad_(False)
        self.register_buffer("kept", keep_rows(context.num_samples, share, context.seed), persistent=False)

    @abstractmethod
    def fit_head(self, rows: HeldOutRows) -> tuple[Tensor, Tensor, dict[str, float]]:
        """Weight (classes, width) and bias (classes,) of the last layer, and what goes into the records."""

    def loss(self, batch: Batch) -> StepOutput:
        per_sample, accuracy = classify(self.first(self.network.forward_features(batch.x)), batch.y)
        return StepOutput(per_sample, self.kept[batch.index], {"accuracy": accuracy})

    def refit(self, training_set: TrainingSet) -> dict[str, float]:
        weight, bias, diagnostics = self.fit_head(self._read(training_set))
        with torch.no_grad():
            self.network.head.weight.copy_(weight)
            self.network.head.bias.copy_(bias)
        return diagnostics

    def sample_columns(self) -> dict[str, Tensor]:
        return {"weight": self.kept}

    def _read(self, training_set: TrainingSet) -> HeldOutRows:
        """The held-out samples' features under the current network, in the order of their indices."""
        rows: list[tuple[Tensor, ...]] = []
        self.network.read_taps(
            (LAST,),
            ((part, part.x) for part in map(self._choose, training_set.batches()) if len(part.y)),
            lambda part, found: rows.append((part.index, found[LAST].float(), part.y, part.domain)),
        )
        if not rows:
            raise UserError("no training image is held out to fit the last layer: raise method.parameters.share")
        index, features, y, domain = (torch.cat(column) for column in zip(*rows, strict=True))
        if not features.isfinite().all():
            raise UserError("the features that the last layer is fitted to are not finite: lower train.learning_rate")
        order = index.argsort()
        return HeldOutRows(features[order], y[order], domain[order])

    def _choose(self, batch: Batch) -> Batch:
        """The held-out samples of a batch."""
        out = self.kept[batch.index] == 0
        return Batch(batch.x[out], batch.y[out], batch.domain[out], batch.index[out])


def keep_rows(samples: int, share: float, seed: int) -> Tensor:
    """Weights (samples,) with mean one: 0 for a random share of the samples, the same for all others."""
    held_out = round(share * samples)
    order = combine(seed, samples, torch.arange(samples)).argsort(stable=True)
    kept = torch.full((samples,), samples / max(1, samples - held_out))
    kept[order[:held_out]] = 0.0
    return kept


ITERATIONS = 30  # of the power method: the largest curvature to a few percent, which a step of 1/L can bear


@dataclass(frozen=True, kw_only=True)
class AFRSettings:
    """Defaults: the authors' published command for Waterbirds.

    share: of the training samples, held out of the first stage for the last layer.
    gamma: γ, how much more samples count that the first stage is unsure of; 0 weights classes alone.
    closeness: λ, how strongly the last layer is held to that of the first stage.
    steps, rate: of gradient descent on the last layer; 0 steps leave it as it was, which is ERM on the other samples.
    """

    share: OpenShare = 0.2
    gamma: NonNegative = 14.0
    closeness: NonNegative = 0.2
    steps: Whole = 500
    rate: Positive = 0.02

    def __post_init__(self) -> None:
        check_fields(self)


class AFR(LastLayer[AFRSettings]):
    r"""AFR: the last layer fitted again to samples the network is unsure of, close to where it was.

    min_φ Σ_i μ_i·CE(φ(f(x_i)), y_i) + λ·‖φ − φ̂‖², μ_i ∝ exp(−γ·p̂_i)/n_{y_i}, over held-out samples i.

    Simple and Fast Group Robustness by Automatic Feature Reweighting (Qiu, Potapczynski, Izmailov and Wilson, ICML
    2023). f and φ̂ are a network trained by cross-entropy on 80 % of the training samples, p̂_i is the probability that
    it gives to sample i's own class, n_c the number of held-out samples of class c; Σμ = 1. φ starts at φ̂ and takes
    steps of gradient descent on all held-out samples at once. No group labels are used; the paper chose γ, λ and
    the stopping time by the worst group of labelled validation samples.

    Departures: the last layer is fitted before every validation, so that source validation chooses the epoch for it;
    the paper does so once, after the first stage. Features are those of the images as they are, where the published
    command takes ten augmentations of each. A step is at most 1/L, L the largest curvature, so that large features
    cannot make it overshoot. All steps are taken.
    """

    title = "the last layer fitted to samples the network is unsure of"
    settings_type = AFRSettings
    selects_by_groups = True

    def __init__(self, network: Network, settings: AFRSettings, context: Context) -> None:
        super().__init__(network, settings, context, settings.share)

    def fit_head(self, rows: HeldOutRows) -> tuple[Tensor, Tensor, dict[str, float]]:
        chosen = self.settings
        weight, bias = self.first.weight.detach().float(), self.first.bias.detach().float()
        weights = weigh_unsure(rows.features @ weight.T + bias, rows.y, chosen.gamma)
        start = torch.cat([weight, bias[:, None]], 1)
        head = descend(start, rows, weights, chosen.closeness, chosen.steps, chosen.rate)
        diagnostics = {"effective_share": float(effective_sample_size(weights)) / len(weights)}
        return head[:, :-1], head[:, -1], diagnostics


def weigh_unsure(logits: Tensor, y: Tensor, gamma: float) -> Tensor:
    """μ (n,), sums to one: exp(−γ·p) of each sample's own class, over the size of its class.   logits: (n, classes)."""
    own = logits.softmax(1).gather(1, y[:, None]).squeeze(1)
    raw = (-gamma * own).exp() / torch.bincount(y)[y]
    return raw / raw.sum()


@torch.no_grad()
def descend(start: Tensor, rows: HeldOutRows, weights: Tensor, closeness: float, steps: int, rate: float) -> Tensor:
    """Gradient descent on Σ μ·CE + λ‖φ − φ̂‖² from φ̂ = start (classes, width + 1), whose last column is the bias."""
    z = torch.cat([rows.features, rows.features.new_ones(len(rows.features), 1)], 1)
    step = min(rate, 1 / (bound_curvature(z, weights) + 2 * closeness))
    truth = torch.nn.functional.one_hot(rows.y, len(start)).to(z)
    head = start.clone()
    for _ in count_steps(steps, "fitting the last layer again"):
        misses = weights[:, None] * ((z @ head.T).softmax(1) - truth)
        head -= step * (misses.T @ z + 2 * closeness * (head - start))
    return head


def bound_curvature(z: Tensor, weights: Tensor) -> float:
    """½·λ_max(Σ μ_i z_i z_iᵀ), above the curvature of the weighted cross-entropy.   z: (n, m).   weights: (n,)."""
    direction = (weights @ z).div_(torch.linalg.vector_norm(weights @ z).clamp_min(1e-30))
    largest = 0.0
    for _ in range(ITERATIONS):
        image = z.T @ (weights * (z @ direction))
        largest = float(torch.linalg.vector_norm(image))
        direction = image / max(largest, 1e-30)
    return largest / 2


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
    r"""DFR: the last layer fitted again to samples of which every group has the same number; an oracle.

    min_{W,b} ‖W‖₁ + C·Σ_{i∈B} CE(W·z_i + b, y_i), B as many samples of every group, z standardised features f(x).

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
    def fit_head(self, rows: HeldOutRows) -> tuple[Tensor, Tensor, dict[str, float]]:
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
