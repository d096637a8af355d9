"""What AFR and DFR share: a network trained on most training samples, its last layer fitted to the others."""

from __future__ import annotations

from abc import abstractmethod
from copy import deepcopy
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from stablenet.algorithms.algorithm import Algorithm, Context, StepOutput, TrainingSet, classify
from stablenet.data.loader import Batch
from stablenet.errors import UserError
from stablenet.models import Network
from stablenet.models.taps import LAST
from stablenet.randomness import combine

S = TypeVar("S")


class HeldOut(NamedTuple):
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
    def fit_head(self, rows: HeldOut) -> tuple[Tensor, Tensor, dict[str, float]]:
        """Weight (classes, width) and bias (classes,) of the last layer, and what goes into the records."""

    def loss(self, batch: Batch) -> StepOutput:
        per_sample, accuracy = classify(self.first(self.network.forward_features(batch.x)), batch.y)
        return StepOutput(per_sample, self.kept[batch.index], {"accuracy": accuracy})

    def refit(self, training_set: TrainingSet) -> dict[str, float]:
        weight, bias, told = self.fit_head(self._read(training_set))
        with torch.no_grad():
            self.network.head.weight.copy_(weight)
            self.network.head.bias.copy_(bias)
        return told

    def sample_columns(self) -> dict[str, Tensor]:
        return {"weight": self.kept}

    def _read(self, training_set: TrainingSet) -> HeldOut:
        """The held-out samples as the network sees them now, in the order of their indices."""
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
        return HeldOut(features[order], y[order], domain[order])

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
