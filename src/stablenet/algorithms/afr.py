"""AFR: the last layer fitted again to samples the network is unsure of, close to where it was."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.algorithms.algorithm import Context
from stablenet.algorithms.last_layer import HeldOut, LastLayer
from stablenet.long_work import count_steps
from stablenet.models import Network
from stablenet.values import NonNegative, OpenShare, Positive, Whole, check_fields
from stablenet.weighting import effective_sample_size

ITERATIONS = 30  # of the power method: the largest curvature to a few percent, which a step of 1/L can bear


@dataclass(frozen=True, kw_only=True)
class AFRSettings:
    """Defaults: the authors' published command for Waterbirds.

    share: of the training samples, held out of the first stage for the last layer.
    gamma: γ, how much more samples count that the first stage is unsure of; 0 weighs classes alone.
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
    r"""min_φ Σ_i μ_i·CE(φ(f(x_i)), y_i) + λ·‖φ − φ̂‖², μ_i ∝ exp(−γ·p̂_i)/n_{y_i}, over held-out samples i.

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

    def fit_head(self, rows: HeldOut) -> tuple[Tensor, Tensor, dict[str, float]]:
        chosen = self.settings
        weight, bias = self.first.weight.detach().float(), self.first.bias.detach().float()
        weights = weigh_unsure(rows.features @ weight.T + bias, rows.y, chosen.gamma)
        start = torch.cat([weight, bias[:, None]], 1)
        head = descend(start, rows, weights, chosen.closeness, chosen.steps, chosen.rate)
        told = {"effective_share": float(effective_sample_size(weights)) / len(weights)}
        return head[:, :-1], head[:, -1], told


def weigh_unsure(logits: Tensor, y: Tensor, gamma: float) -> Tensor:
    """μ (n,), sums to one: exp(−γ·p) of each sample's own class, over the size of its class.   logits: (n, classes)."""
    own = logits.softmax(1).gather(1, y[:, None]).squeeze(1)
    raw = (-gamma * own).exp() / torch.bincount(y)[y]
    return raw / raw.sum()


@torch.no_grad()
def descend(start: Tensor, rows: HeldOut, weights: Tensor, closeness: float, steps: int, rate: float) -> Tensor:
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
