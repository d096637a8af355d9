"""A method that knows every sample's context: how much weights could gain from it.

StableNet has to infer contexts from shallow features. This method reads them (a background, a domain), so its figures
show what reweighting can achieve on the same samples with the same network and schedule. It gives every context of a
class the same total weight, or makes context and label independent, as StableNet's own solver would if the features
were the contexts. It is used in the tables of `results/` and is not part of the package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from stablenet.algorithms import ALGORITHMS, Algorithm, EpochJudge, StepOutput
from stablenet.algorithms.algorithm import Context, TrainingSet, classify
from stablenet.data.loader import Batch
from stablenet.models import Network
from stablenet.weighting import recommended, solve_dataset


@dataclass(frozen=True, kw_only=True)
class KnownContextsSettings:
    """aim: every context of a class weighs the same, or context and label become independent.
    penalty: with aim="independence", the penalty on unequal weights; the smallest gives the most independence.
    ramp: share of the epochs over which weights grow from ones, as StableNet's do.
    """

    aim: Literal["balance", "independence"] = "balance"
    penalty: float = recommended.WHOLE_SET["penalty"]
    ramp: float = 1 / 6


class KnownContexts(Algorithm[KnownContextsSettings]):
    r"""min 1/n Σ w_i·CE_i with weights that are a function of class and context.

    balance: w_i = n_c / (K_c·n_{c,k}): class c, its K_c contexts, n_{c,k} samples in context k.
    independence: the weights of `recommended` with the contexts' indicators in place of a network's features.
    """

    title = "weights from known contexts"
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
            self.weigh(self.weights, training_set)
        return {}

    def judge_epochs(self) -> EpochJudge:
        return BalancedJudge(self)

    def weigh(self, weights: Tensor, samples: TrainingSet) -> None:
        """Fill in the weights (n,) of all samples."""
        columns = zip(*((batch.index, batch.y, batch.domain) for batch in samples.batches()), strict=True)
        index, y, context = (torch.cat(column) for column in columns)
        balanced = self.settings.aim == "balance"
        found = balance(y, context) if balanced else make_independent(y, context, self.settings.penalty)
        weights[index] = found.to(weights)


class BalancedJudge(EpochJudge):
    """Ranks epochs under weights of the validation samples that are found as those of training."""

    def __init__(self, method: KnownContexts) -> None:
        self._method = method

    @torch.no_grad()
    def start(self, validation_set: TrainingSet) -> None:
        self._method.weigh(self._method.judging, validation_set)

    def weights(self) -> Tensor:
        return self._method.judging


def balance(y: Tensor, context: Tensor) -> Tensor:
    """Weights (n,) that give every context of a class the same total, and preserve the class totals."""
    cells, cell = torch.stack([y, context]).unique(dim=1, return_inverse=True)
    in_cell = torch.bincount(cell, minlength=cells.shape[1])
    contexts, in_class = torch.bincount(cells[0]), torch.bincount(y)
    return in_class[y] / (contexts[y] * in_cell[cell])


def make_independent(y: Tensor, context: Tensor, penalty: float) -> Tensor:
    """Weights (n,) under which context and label are as independent as the penalty allows."""
    indicators = torch.nn.functional.one_hot(context.unique(return_inverse=True)[1]).float()
    return solve_dataset(indicators, y, num_functions=0, penalty=penalty).weights


ALGORITHMS.add("known-contexts", KnownContexts)
