"""Balancing by known contexts, an oracle: what weights or sampling could gain if every sample's context were known.

StableNet has to infer contexts from shallow features. This method reads them: they are the domains, such as
backgrounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from stablenet.algorithms.algorithm import Algorithm, Context, EpochJudge, StepOutput, TrainingSet, classify
from stablenet.data.loader import Batch
from stablenet.models import Network
from stablenet.values import NonNegative, Share, check_fields
from stablenet.weighting import recommended, solve_dataset


@dataclass(frozen=True, kw_only=True)
class KnownContextsSettings:
    """aim: "balance", every context of a class counts the same; "groups", every pair of class and context counts the
        same; "independence", context and label become independent.
    by: weights multiply the loss, or decide how often a sample is drawn ("sampling", from the first epoch on).
    penalty: with aim="independence", the penalty on unequal weights; the smallest gives the most independence.
    ramp: share of the epochs over which weights grow from ones, as StableNet's do.
    """

    aim: Literal["balance", "groups", "independence"] = "balance"
    by: Literal["weights", "sampling"] = "weights"
    penalty: NonNegative = recommended.WHOLE_SET["penalty"]
    ramp: Share = recommended.RAMP

    def __post_init__(self) -> None:
        check_fields(self)


class KnownContexts(Algorithm[KnownContextsSettings]):
    r"""min 1/n Σ w_i·CE_i with weights that are a function of class c and context k of sample i, or samples drawn by w.

    With n_ck samples of class c in context k, K_c contexts of class c and K pairs that occur,

    balance: w_i = n_c/(K_c·n_ck), so that the classes keep their totals.
    groups: w_i = n/(K·n_ck).
    independence: the weights of StableNet's preset `recommended` with the contexts' indicators as features.

    Epochs are ranked by source validation under weights of the validation samples that are found in the same way.
    """

    title = "weights or sampling that balance known contexts"
    settings_type = KnownContextsSettings
    uses_groups = True
    several_processes = False  # weights are those of all samples, and a process reads its share

    weights: Tensor
    judging: Tensor
    strength: Tensor

    def __init__(self, network: Network, settings: KnownContextsSettings, context: Context) -> None:
        super().__init__(network, settings, context)
        self.draws_samples = settings.by == "sampling"
        self.register_buffer("weights", torch.ones(context.num_samples))
        self.register_buffer("judging", torch.ones(context.num_validation))
        self.register_buffer("strength", torch.zeros(()))

    def loss(self, batch: Batch) -> StepOutput:
        logits, _ = self.run_network(batch.x)
        per_sample, accuracy = classify(logits, batch.y)
        if self.settings.by == "sampling":
            return StepOutput(per_sample, None, {"accuracy": accuracy})
        weights = 1 + self.strength * (self.weights[batch.index] - 1)
        return StepOutput(per_sample, weights, {"accuracy": accuracy})

    @torch.no_grad()
    def start_epoch(self, epoch: int, training_set: TrainingSet) -> dict[str, float]:
        length = self.settings.ramp * self.context.epochs
        self.strength.fill_(min(1.0, epoch / length) if length else 1.0)
        if epoch == 0:
            self.weigh(self.weights, training_set)
        return {}

    def sampling_weights(self) -> Tensor | None:
        return self.weights if self.settings.by == "sampling" else None

    def sample_columns(self) -> dict[str, Tensor]:
        strength = 1.0 if self.settings.by == "sampling" else self.strength
        return {"weight": 1 + strength * (self.weights - 1)}

    def judge_epochs(self) -> EpochJudge:
        return BalancedJudge(self)

    def weigh(self, weights: Tensor, samples: TrainingSet) -> None:
        """Fill in the weights (n,) of all samples."""
        columns = zip(*((batch.index, batch.y, batch.domain) for batch in samples.batches()), strict=True)
        index, y, context = (torch.cat(column) for column in columns)
        if self.settings.aim == "independence":
            found = make_independent(y, context, self.settings.penalty)
        else:
            found = balance(y, context) if self.settings.aim == "balance" else balance_groups(y, context)
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


def balance_groups(y: Tensor, context: Tensor) -> Tensor:
    """Weights (n,) with mean one that give every pair of class and context that occurs the same total."""
    cells, cell = torch.stack([y, context]).unique(dim=1, return_inverse=True)
    in_cell = torch.bincount(cell, minlength=cells.shape[1])
    return len(y) / (len(in_cell) * in_cell[cell])


def make_independent(y: Tensor, context: Tensor, penalty: float) -> Tensor:
    """Weights (n,) under which context and label are as independent as the penalty allows."""
    indicators = torch.nn.functional.one_hot(context.unique(return_inverse=True)[1]).float()
    return solve_dataset(indicators, y, num_functions=0, penalty=penalty).weights
