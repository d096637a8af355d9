"""uLA: logits shifted by how often each class goes with the class that a linear proxy predicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional

from stablenet.algorithms.algorithm import (
    Algorithm,
    Context,
    EpochJudge,
    StepOutput,
    TrainingSet,
    classify,
)
from stablenet.data.loader import Batch
from stablenet.models import Network
from stablenet.models.taps import LAST
from stablenet.values import Filled, NonNegative, Positive, check_fields, require
from stablenet.weighting.logistic import fit_logistic, whole_regressors


@dataclass(frozen=True, kw_only=True)
class ULASettings:
    """strength: η, of the shift; 0 is ERM.
    ridge: of the proxy, a logistic regression: the larger, the simpler what it learns.
    taps: the features of the untrained or pretrained network that the proxy sees.
    """

    strength: NonNegative = 1.0  # the authors' published command
    ridge: Positive = 0.1  # ours: the proxy of the paper is held back by stopping early
    taps: Annotated[tuple[str, ...], Filled()] = (LAST,)

    def __post_init__(self) -> None:
        check_fields(self)
        vectors = not any(tap.endswith(":maps") for tap in self.taps)
        require(vectors, "taps", "feature vectors, for example ['last']", self.taps)


class ULA(Algorithm[ULASettings]):
    r"""min 1/n Σ CE(g(f(x_i)) + η·log p(· | ŷ_i), y_i), ŷ_i the class that a linear proxy predicts of x_i.

    Group Robust Classification Without Any Group Information (Tsirigotis, Monteiro, Rodriguez, Vazquez and Courville,
    NeurIPS 2023). The proxy is a linear classifier on frozen features of a pretrained network; the same network is then
    trained. p(y, ŷ) is a table of classes × classes: Σ_i [y_i = y]·p_b(ŷ | x_i)/n with the proxy's probabilities p_b.
    The network is used without the shift. Epochs are ranked by accuracy that counts every pair of class and predicted
    class that occurs in the validation part the same, so neither training nor selection sees a group label.

    Departures: features are those that the run's network starts with, of whatever pretraining, where the paper's come
    from self-supervised learning on the data themselves. The proxy is fitted to its minimum under a ridge penalty, and
    its table and predictions are those of the images as they are; the paper stops it after some epochs, and updates the
    table (a moving average) and the predictions with every batch of augmented images.
    """

    title = "logits shifted by how classes go with the class a linear proxy predicts"
    settings_type = ULASettings
    replayable = True
    several_processes = False  # the table is that of all samples, and a process reads its share

    offsets: Tensor
    told: Tensor
    judging: Tensor

    def __init__(self, network: Network, settings: ULASettings, context: Context) -> None:
        super().__init__(network, settings, context)
        network.tap(settings.taps)  # an unknown one is refused at once
        network.tap(())
        self.register_buffer("offsets", torch.zeros(context.num_samples, context.num_classes))
        self.register_buffer("told", torch.zeros(context.num_samples, context.num_classes))
        self.register_buffer("judging", torch.ones(context.num_validation))
        self._proxy: LinearProxy | None = None  # between the training set and the validation part alone

    def loss(self, batch: Batch) -> StepOutput:
        logits, _ = self.run_network(batch.x)
        per_sample, accuracy = classify(logits, batch.y, self.offsets[batch.index])
        return StepOutput(per_sample, None, {"accuracy": accuracy})

    @torch.no_grad()
    def start_epoch(self, epoch: int, training_set: TrainingSet) -> dict[str, float]:
        if epoch:
            return {}
        index, y, features = self.read(training_set)
        self._proxy = LinearProxy(features, y, self.context.num_classes, self.settings.ridge)
        logits = self._proxy(features)
        table = tabulate(logits.softmax(1), y)
        conditional = condition(table)[logits.argmax(1)]
        self.offsets[index] = self.settings.strength * conditional
        prior = (table.sum(0) / table.sum()).clamp_min(LEAST).log()
        self.told[index] = conditional - prior
        return {"proxy_accuracy": float((logits.argmax(1) == y).float().mean())}

    def judge_epochs(self) -> EpochJudge:
        return ProxyJudge(self)

    @torch.no_grad()
    def weigh_validation(self, validation_set: TrainingSet) -> None:
        """Weights of the validation samples that give every pair of class and predicted class the same total."""
        assert self._proxy is not None
        index, y, features = self.read(validation_set)
        pair = y * self.context.num_classes + self._proxy(features).argmax(1)
        count = torch.bincount(pair)
        self.judging[index] = len(y) / (count.count_nonzero() * count[pair]).float()

    def sample_columns(self) -> dict[str, Tensor]:
        return {"offset": self.offsets, "context": self.told}

    def read(self, samples: TrainingSet) -> tuple[Tensor, Tensor, Tensor]:
        """Index (n,), class (n,) and joined features (n, m) of all samples, by the network as it is."""
        rows: list[tuple[Tensor, ...]] = []
        self.network.read_taps(
            self.settings.taps,
            ((batch, batch.x) for batch in samples.batches()),
            lambda batch, found: rows.append((batch.index, batch.y, torch.cat(list(found.values()), 1).float())),
        )
        index, y, features = (torch.cat(column) for column in zip(*rows, strict=True))
        return index, y, features


class ProxyJudge(EpochJudge):
    """Ranks epochs by accuracy over pairs of class and class predicted by the proxy."""

    def __init__(self, method: ULA) -> None:
        self._method = method

    def start(self, validation_set: TrainingSet) -> None:
        self._method.weigh_validation(validation_set)

    def weights(self) -> Tensor:
        return self._method.judging


LEAST = 1e-12  # of a probability: a class without samples has a logarithm, too


class LinearProxy:
    """A logistic regression on standardised features: min 1/n Σ CE + ridge·‖W‖².

    features: (n, m).   y: (n,).
    """

    def __init__(self, features: Tensor, y: Tensor, classes: int, ridge: float) -> None:
        self._mean, self._deviation = features.mean(0), features.std(0, correction=0)
        shares = features.new_full((1, len(y)), 1 / len(y))
        self._slopes = features.new_zeros(1, features.shape[1], classes)
        self._level = features.new_zeros(1, 1, classes)
        with torch.autocast(features.device.type, enabled=False):
            fit_logistic(whole_regressors(self._scale(features)), y, shares, ridge, self._slopes, self._level)

    def __call__(self, features: Tensor) -> Tensor:
        """Logits (n, classes)."""
        return self._scale(features) @ self._slopes[0] + self._level[0]

    def _scale(self, features: Tensor) -> Tensor:
        return (features - self._mean) / torch.where(self._deviation > 0, self._deviation, 1.0)


def tabulate(told: Tensor, y: Tensor) -> Tensor:
    """p(ŷ, y) (classes, classes), predicted class first.   told: (n, classes) the proxy's probabilities.   y: (n,)."""
    truth = functional.one_hot(y, told.shape[1]).to(told)
    return told.T @ truth / len(y)


def condition(table: Tensor) -> Tensor:
    """log p(y | ŷ) from p(ŷ, y), row by row."""
    return (table / table.sum(1, keepdim=True).clamp_min(LEAST)).clamp_min(LEAST).log()
