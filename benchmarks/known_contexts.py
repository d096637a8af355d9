"""A method that is told every sample's context: how much weights could win if they knew it.

StableNet has to guess contexts from shallow features. This one reads them (a background, a domain) and gives every
context of a class the same total weight, so that its figures bound what re-weighting can do on the same samples with
the same network and schedule. It is named in the tables of `results/` and no part of the package.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.algorithms import ALGORITHMS, Algorithm, StepOutput
from stablenet.algorithms.base import Context, TrainingSet, classify
from stablenet.data.pipeline import Batch
from stablenet.models import Network


@dataclass(frozen=True, kw_only=True)
class KnownContextsSettings:
    """ramp: share of the epochs over which weights grow from ones, as StableNet's do."""

    ramp: float = 1 / 6


class KnownContexts(Algorithm[KnownContextsSettings]):
    r"""min 1/n Σ w_i·CE_i with w_i = n_c / (K_c·n_{c,k}): class c, its K_c contexts, n_{c,k} samples in context k."""

    title = "every known context of a class weighs the same"
    settings_type = KnownContextsSettings
    uses_domains = True
    several_processes = False

    weights: Tensor
    judging: Tensor
    strength: Tensor

    def __init__(self, network: Network, settings: KnownContextsSettings, context: Context) -> None:
        super().__init__(network, settings, context)
        self.register_buffer("weights", torch.ones(context.num_samples))
        self.register_buffer("judging", torch.ones(context.num_validation))
        self.register_buffer("strength", torch.zeros(()))

    def loss(self, batch: Batch) -> StepOutput:
        logits, _ = self.run_network(batch.x)
        per_sample, accuracy = classify(logits, batch.y)
        weights = 1 + self.strength * (self.weights[batch.index] - 1)
        return StepOutput(per_sample, weights, {"accuracy": accuracy})

    @torch.no_grad()
    def start_epoch(self, epoch: int, training_set: TrainingSet) -> dict[str, float]:
        length = self.settings.ramp * self.context.epochs
        self.strength.fill_(min(1.0, epoch / length) if length else 1.0)
        if epoch == 0:
            balance(self.weights, training_set)
        return {}

    @torch.no_grad()
    def start_validation(self, validation_set: TrainingSet) -> None:
        balance(self.judging, validation_set)

    def validation_weights(self) -> Tensor | None:
        return self.judging if len(self.judging) else None


def balance(weights: Tensor, samples: TrainingSet) -> None:
    """Fill in the weights (n,) that give every context of a class the same total, and every class its number."""
    columns = zip(*((batch.index, batch.y, batch.domain) for batch in samples.batches()), strict=True)
    index, y, domain = (torch.cat(column) for column in columns)
    cells, cell = torch.stack([y, domain]).unique(dim=1, return_inverse=True)
    in_cell = torch.bincount(cell, minlength=cells.shape[1])
    contexts, in_class = torch.bincount(cells[0]), torch.bincount(y)
    weights[index] = (in_class[y] / (contexts[y] * in_cell[cell])).to(weights)


ALGORITHMS.add("known-contexts", KnownContexts)
