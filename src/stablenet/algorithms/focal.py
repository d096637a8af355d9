"""Focal loss: samples that are classified well already count less."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.algorithms.algorithm import Algorithm, StepOutput, classify
from stablenet.data.loader import Batch
from stablenet.values import NonNegative, check_fields

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

    title = "samples that are classified well already count less"
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
