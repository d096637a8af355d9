"""What methods share whose first epochs train another network, only to see what it learns first."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from stablenet.algorithms.algorithm import Algorithm, Context, StepOutput, TrainingSet, classify
from stablenet.data.loader import Batch
from stablenet.models import Network
from stablenet.models.taps import LAST

S = TypeVar("S")


@dataclass(frozen=True)
class Outputs:
    """What a network says of all training samples.   index, y: (n,).   logits: (n, classes) float32."""

    index: Tensor
    y: Tensor
    logits: Tensor

    @property
    def wrong(self) -> Tensor:
        """Whether samples are misclassified, (n,)."""
        return self.logits.argmax(1) != self.y


class TwoStage(Algorithm[S]):
    """The first epochs train a copy of the network by cross-entropy; then `look` sees what it says of all training
    samples, and the network itself, as it was at the start, is trained in the epochs that are left.

    Both share the run's epochs, optimiser and schedule. Until the second stage the predictor is untrained, and that is
    what the records validate. A run of one epoch has none to spare: nothing is looked at.
    """

    one_plain_pass = False  # the first epochs train another network
    several_processes = False  # `look` sees all samples, and a process reads its share

    second: Tensor

    def __init__(self, network: Network, settings: S, context: Context, share: float) -> None:
        super().__init__(network, settings, context)
        self.first_epochs = min(math.ceil(share * context.epochs), context.epochs - 1)
        self.first = deepcopy(network)
        self.register_buffer("second", torch.tensor(self.first_epochs == 0))

    @abstractmethod
    def look(self, outputs: Outputs) -> dict[str, float]:
        """Called between the stages, on what the first network says; what it returns goes into the records."""

    @abstractmethod
    def second_loss(self, batch: Batch) -> StepOutput:
        """`loss` of the second stage."""

    def loss(self, batch: Batch) -> StepOutput:
        if self.second:
            return self.second_loss(batch)
        per_sample, accuracy = classify(self.first(batch.x), batch.y)
        return StepOutput(per_sample, None, {"accuracy": accuracy})

    @torch.no_grad()
    def start_epoch(self, epoch: int, training_set: TrainingSet) -> dict[str, float]:
        if epoch != self.first_epochs or self.first_epochs == 0:
            return {}
        self.second.fill_(True)
        return self.look(read_outputs(self.first, training_set))

    def trains_predictor(self) -> bool:
        return bool(self.second)


class TwoDraws(TwoStage[S]):
    """The second stage is cross-entropy again, of samples drawn in proportion to what `look` writes into `draws`."""

    draws_samples = True

    draws: Tensor

    def __init__(self, network: Network, settings: S, context: Context, share: float) -> None:
        super().__init__(network, settings, context, share)
        self.register_buffer("draws", torch.ones(context.num_samples))

    def second_loss(self, batch: Batch) -> StepOutput:
        logits, _ = self.run_network(batch.x)
        per_sample, accuracy = classify(logits, batch.y)
        return StepOutput(per_sample, None, {"accuracy": accuracy})

    def sampling_weights(self) -> Tensor | None:
        return self.draws if self.second and self.first_epochs else None

    def sample_columns(self) -> dict[str, Tensor]:
        return {"weight": self.draws / self.draws.mean()}


def read_outputs(network: Network, training_set: TrainingSet) -> Outputs:
    """Pass all samples through a network, without augmentation, in eval mode; in the order of their indices."""
    rows: list[tuple[Tensor, ...]] = []

    def keep(batch: Batch, found: Mapping[str, Tensor]) -> None:
        rows.append((batch.index, batch.y, functional.linear(found[LAST], *head).float()))

    head = network.head.weight, network.head.bias
    network.read_taps((LAST,), ((batch, batch.x) for batch in training_set.batches()), keep)
    index, y, logits = (torch.cat(column) for column in zip(*rows, strict=True))
    order = index.argsort()
    return Outputs(index[order], y[order], logits[order])
