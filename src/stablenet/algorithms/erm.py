"""Empirical risk minimisation, and two small changes of its loss.

ERM is plain cross-entropy, every sample alike. Focal loss counts well-classified samples less. Mixup trains on convex
combinations of samples, in images and labels alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stablenet.algorithms.algorithm import Algorithm, Context, StepOutput, classify
from stablenet.data.loader import Batch
from stablenet.models import Network
from stablenet.values import NonNegative, check_fields


@dataclass(frozen=True, kw_only=True)
class ERMSettings:
    """There is nothing to choose."""


class ERM(Algorithm[ERMSettings]):
    """min 1/n Σ CE(g(f(x_i)), y_i): the reference every method is compared with."""

    title = "plain cross-entropy, the reference for all others"
    settings_type = ERMSettings
    replayable = True

    def loss(self, batch: Batch) -> StepOutput:
        logits, _ = self.run_network(batch.x)
        per_sample, accuracy = classify(logits, batch.y)
        return StepOutput(per_sample, None, {"accuracy": accuracy})


LEAST = 1e-7  # of 1 − p: below, the slope of (1 − p)^γ with γ < 1 would no longer be finite


@dataclass(frozen=True, kw_only=True)
class FocalSettings:
    """gamma: how strongly well-classified samples are held back; 0 is cross-entropy."""

    gamma: NonNegative = 2.0  # the method's paper

    def __post_init__(self) -> None:
        check_fields(self)


class Focal(Algorithm[FocalSettings]):
    r"""min 1/n Σ (1 − p_i)^γ·CE_i, with p_i = exp(−CE_i) the probability of sample i's own class.

    After Lin et al., Focal Loss for Dense Object Detection, ICCV 2017. Departures: its class weights α, made for
    detection with few objects among much background, are left out; StableNet's paper names none. The sum is divided
    by the number of samples, not of objects.
    """

    title = "well-classified samples count less"
    settings_type = FocalSettings
    replayable = True

    def loss(self, batch: Batch) -> StepOutput:
        logits, _ = self.run_network(batch.x)
        cross_entropy, accuracy = classify(logits, batch.y)
        return StepOutput(focus(cross_entropy, self.settings.gamma), None, {"accuracy": accuracy})


def focus(cross_entropy: Tensor, gamma: float) -> Tensor:
    """(b,) cross-entropies -> (b,) focal losses; the gradient goes through both factors."""
    missing = -torch.expm1(-cross_entropy)  # 1 − p, exact also where p is almost 1
    return missing.clamp_min(LEAST) ** gamma * cross_entropy


@dataclass(frozen=True, kw_only=True)
class MixupSettings:
    """alpha: λ ~ Beta(α, α); small values mix little, 0 not at all."""

    alpha: NonNegative = 0.2  # DomainBed

    def __post_init__(self) -> None:
        check_fields(self)


class Mixup(Algorithm[MixupSettings]):
    r"""min E[λ·CE(f(x̃), y_i) + (1 − λ)·CE(f(x̃), y_j)], x̃ = λ·x_i + (1 − λ)·x_j (Zhang et al., ICLR 2018).

    λ ~ Beta(α, α) is drawn once per batch, j is a random permutation of it; both depend on the run's seed and the step
    alone. Pairs are drawn from the whole batch, as in the paper; DomainBed's variant pairs samples of two domains.
    """

    title = "convex combinations of samples and labels"
    settings_type = MixupSettings

    def __init__(self, network: Network, settings: MixupSettings, context: Context) -> None:
        super().__init__(network, settings, context)
        self._steps = 0  # batches mixed so far

    def loss(self, batch: Batch) -> StepOutput:
        share, partner = self._draw(len(batch.y))
        partner = partner.to(batch.x.device)
        logits, _ = self.run_network(mix(batch.x, batch.x[partner], share))
        own, own_accuracy = classify(logits, batch.y)
        other, other_accuracy = classify(logits, batch.y[partner])
        return StepOutput(mix(own, other, share), None, {"accuracy": mix(own_accuracy, other_accuracy, share)})

    def _draw(self, size: int) -> tuple[float, Tensor]:
        """λ and the partner of every sample (b,); λ = 1 outside of training and with α = 0."""
        generator = np.random.default_rng([self.context.seed, self._steps])
        if not self.training:
            return 1.0, torch.arange(size)
        self._steps += 1
        share = generator.beta(self.settings.alpha, self.settings.alpha) if self.settings.alpha else 1.0
        return float(share), torch.from_numpy(generator.permutation(size))

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self._steps])

    def set_extra_state(self, state: Tensor) -> None:
        self._steps = int(state[0])


def mix(one: Tensor, other: Tensor, share: float) -> Tensor:
    """λ·one + (1 − λ)·other; bit for bit the first where λ = 1."""
    return share * one + (1 - share) * other
