"""IRM: features on which one classifier is the best in every domain at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.algorithms.algorithm import Algorithm, Context, StepOutput, TrainingSet, classify
from stablenet.data.loader import Batch
from stablenet.models import Network
from stablenet.values import NonNegative, Share, check_fields


@dataclass(frozen=True, kw_only=True)
class IRMSettings:
    """strength: λ of the penalty.   warmup: share of the epochs before it counts in full."""

    strength: NonNegative = 100.0  # DomainBed
    warmup: Share = 0.1  # DomainBed: 500 of 5,000 steps, with a strength of 1

    def __post_init__(self) -> None:
        check_fields(self)


class IRM(Algorithm[IRMSettings]):
    r"""min_Φ Σ_d R_d(Φ) + λ·‖∇_{s|s=1} R_d(s·Φ)‖² (IRMv1; Arjovsky et al., 2019).

    R_d is domain d's mean cross-entropy and s a scalar in front of the logits.

    Departures: the cross-entropy is the mean over samples, which with balanced domains is the mean over domains. A
    domain with a single sample in the batch stays out of the penalty. The square is that of the slope over a domain's
    samples in the batch, as in the authors' coloured digits; the product of the slopes of two halves, which the paper's
    appendix and DomainBed have, is free of bias, but where the halves' signs differ it falls without bound as logits
    grow, and a batch may hold a handful of a domain. Neither form was stable on the embedded digits at λ = 1 (one seed
    each), so that the choice rests on this argument, not on a comparison. Above one, λ divides the whole loss, as the
    authors' experiments do, so that gradients keep their size. The warm-up is counted in epochs, and the optimiser
    keeps its state at its end, where DomainBed starts Adam anew.
    """

    title = "one classifier optimal in every domain"
    settings_type = IRMSettings
    uses_domains = True
    several_processes = False  # the slopes are those of a domain's samples in the whole batch

    strength: Tensor

    def __init__(self, network: Network, settings: IRMSettings, context: Context) -> None:
        super().__init__(network, settings, context)
        self.register_buffer("strength", torch.tensor(self._strength_of(0)))

    def start_epoch(self, epoch: int, training_set: TrainingSet) -> dict[str, float]:
        self.strength.fill_(self._strength_of(epoch))
        return {}

    def loss(self, batch: Batch) -> StepOutput:
        logits, _ = self.run_network(batch.x)
        per_sample, accuracy = classify(logits, batch.y)
        penalty = invariance_penalty(logits.float(), batch.y, batch.domain)
        total = (per_sample + self.strength * penalty) / self.strength.clamp_min(1.0)
        return StepOutput(total, None, {"accuracy": accuracy, "penalty": penalty.detach()})

    def _strength_of(self, epoch: int) -> float:
        warm = epoch < self.settings.warmup * self.context.epochs
        return min(1.0, self.settings.strength) if warm else self.settings.strength


def invariance_penalty(logits: Tensor, y: Tensor, domain: Tensor) -> Tensor:
    """Mean over domains of the squared slope of their risk.   logits: (b, classes).   y, domain: (b,).

    Returns a scalar; zero where no domain has two samples.
    """
    same = (domain[:, None] == domain).to(logits.dtype)
    count = same.sum(1)
    slope = same @ scale_slope(logits, y) / count  # the same for all samples of a domain
    once = (count > 1) / count  # sums to one over a domain that has two samples
    return once @ slope.square() / once.sum().clamp_min(1.0)


def scale_slope(logits: Tensor, y: Tensor) -> Tensor:
    """∂CE(s·logits, y)/∂s at s = 1 of every sample: Σ_k p_k·logit_k − logit_y.   Returns (b,)."""
    expected = (torch.softmax(logits, 1) * logits).sum(1)
    return expected - logits.gather(1, y[:, None]).squeeze(1)
