"""Methods with a biased model, which shows what to correct: uLA, LfF and Logit Correction.

uLA shifts logits by how often each class co-occurs with the class that a linear proxy predicts. The other two train a
biased network alongside the final one: LfF weights samples by it, Logit Correction shifts logits.
"""

from __future__ import annotations

from copy import deepcopy
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
    UsedWeights,
    classify,
)
from stablenet.data.loader import Batch
from stablenet.models import Network
from stablenet.models.taps import LAST
from stablenet.values import Filled, NonNegative, Positive, ShareBelowOne, check_fields, require
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

    title = "logits shifted by how classes co-occur with a linear proxy's predictions"
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


@dataclass(frozen=True, kw_only=True)
class LfFSettings:
    """amplification: q of the generalised cross-entropy, how strongly the biased network prefers easy samples.
    memory: of the moving averages of every sample's losses.
    """

    amplification: NonNegative = 0.7  # its paper
    memory: ShareBelowOne = 0.7  # its paper

    def __post_init__(self) -> None:
        check_fields(self)


class LfF(Algorithm[LfFSettings]):
    r"""LfF: two networks at once, one trained to rely on what is easy, one that learns from what the first finds hard.

    min_{θ,b} 1/n Σ_i W_i·CE(g_θ(x_i), y_i) + q·p_b(y_i | x_i)^q·CE(g_b(x_i), y_i), W_i = ℓ_b/(ℓ_b + ℓ_θ).

    Learning from Failure: De-biasing Classifier from Biased Classifier (Nam, Cha, Ahn, Lee and Shin, NeurIPS
    2020). The biased network g_b has the gradient of the generalised cross-entropy (p^q is a constant in it), so it
    learns mostly from what it already predicts well. ℓ_b and ℓ_θ are moving averages of sample i's cross-entropies
    under both networks, each divided by the largest of its class; W is a constant in the loss. g_θ predicts. No group
    labels are used; the paper's hyper-parameters are the defaults.

    Departures: both networks start from the same body, each with a new last layer, and share the run's optimiser.
    """

    title = "a network that learns from what a biased one finds hard"
    settings_type = LfFSettings
    one_plain_pass = False  # a second network learns beside it
    several_processes = False  # averages of all samples are those of one process

    averages: Tensor
    label: Tensor

    def __init__(self, network: Network, settings: LfFSettings, context: Context) -> None:
        super().__init__(network, settings, context)
        self.biased = make_biased(network)
        self.used = UsedWeights(context.num_samples)
        self.register_buffer("averages", torch.zeros(2, context.num_samples))
        self.register_buffer("label", torch.full((context.num_samples,), -1))  # of samples seen so far

    def loss(self, batch: Batch) -> StepOutput:
        logits, _ = self.run_network(batch.x)
        per_sample, accuracy = classify(logits, batch.y)
        told = self.biased(batch.x)
        biased, _ = classify(told, batch.y)
        if self.training:
            self._remember(batch, torch.stack([biased.detach(), per_sample.detach()]))
        weights = self._weigh(batch)
        if self.training:
            self.used.keep(batch.index, weights)
        total = weights * per_sample + amplify(told, batch.y, self.settings.amplification)
        return StepOutput(total, None, {"accuracy": accuracy, "mean_weight": weights.mean()})

    def sample_columns(self) -> dict[str, Tensor]:
        return {"weight": self.used.weights / self.used.weights.mean()}

    def _remember(self, batch: Batch, losses: Tensor) -> None:
        """losses: (2, b)."""
        first = self.label[batch.index] < 0
        memory = torch.where(first, 0.0, self.settings.memory)
        self.averages[:, batch.index] = memory * self.averages[:, batch.index] + (1 - memory) * losses
        self.label[batch.index] = batch.y

    def _weigh(self, batch: Batch) -> Tensor:
        """W (b,), from averages that are divided by the largest of their class."""
        seen = self.label.clamp_min(0)
        kept = torch.where(self.label >= 0, self.averages, 0.0)
        largest = kept.new_zeros(2, self.context.num_classes).scatter_reduce(1, seen.expand(2, -1), kept, "amax")
        biased, own = (self.averages[:, batch.index] / largest[:, batch.y].clamp_min(1e-8)).unbind()
        return torch.div(biased, (biased + own).clamp_min(1e-8))


def make_biased(network: Network) -> Network:
    """A copy with a last layer of its own."""
    biased = deepcopy(network)
    biased.head.reset_parameters()
    return biased


def amplify(logits: Tensor, y: Tensor, q: float) -> Tensor:
    """q·p^q·CE (b,) with p the probability of the own class, without gradient: that of (1 − p^q)."""
    cross_entropy, _ = classify(logits, y)
    return q * (-q * cross_entropy.detach()).exp() * cross_entropy


SMALLEST = 1e-4  # added to probabilities before their logarithm (published code)


@dataclass(frozen=True, kw_only=True)
class LCSettings:
    """strength: η, the power of the table's probabilities; 0 is ERM next to a network without effect.
    amplification: q of the biased network's generalised cross-entropy.
    memory: of the moving average that the table is.
    """

    strength: NonNegative = 1.0  # the authors' published code
    amplification: NonNegative = 0.7  # the authors' published code
    memory: ShareBelowOne = 0.5  # of a published re-implementation by uLA's authors

    def __post_init__(self) -> None:
        check_fields(self)


class LC(Algorithm[LCSettings]):
    r"""Logit Correction: logits shifted by how often classes co-occur with a biased network's predictions.

    min_{θ,b} 1/n Σ_i CE(g_θ(x_i) + log(p(ŷ_i, ·)^η + 10⁻⁴), y_i) + q·p_b(y_i | x_i)^q·CE(g_b(x_i), y_i).

    Avoiding spurious correlations via logit correction (Liu, Zhang, Sekhar, Wu, Singhal and Fernandez-Granda, ICLR
    2023). g_b is a biased network as in LfF, ŷ_i the class that it predicts. The table p(ŷ, y) of classes × classes
    is a moving average over batches of Σ_i p_b(ŷ | x_i)·[y_i = y]/b. g_θ predicts, without the shift. No group labels
    are used in training.

    Departures: the paper's GroupMixUp, which mixes images of rare pairs of class and predicted class with others of
    the same class, is left out. Both networks start from the same body, each with a new last layer, and share the
    run's optimiser. The table starts uniform.
    """

    title = "logits shifted by how classes co-occur with a biased network's predictions"
    settings_type = LCSettings
    selects_by_groups = True
    one_plain_pass = False  # a second network learns beside it
    several_processes = False  # the table is that of one process's samples

    table: Tensor

    def __init__(self, network: Network, settings: LCSettings, context: Context) -> None:
        super().__init__(network, settings, context)
        self.biased = make_biased(network)
        size = context.num_classes
        self.register_buffer("table", torch.full((size, size), 1 / size**2))

    def loss(self, batch: Batch) -> StepOutput:
        told = self.biased(batch.x)
        logits, _ = self.run_network(batch.x)
        if self.training:
            joint = tabulate(told.detach().float().softmax(1), batch.y)
            self.table.mul_(self.settings.memory).add_((1 - self.settings.memory) * joint)
        shift = (self.table[told.argmax(1)] ** self.settings.strength + SMALLEST).log()
        per_sample, accuracy = classify(logits, batch.y, shift)
        total = per_sample + amplify(told, batch.y, self.settings.amplification)
        agreement = (told.argmax(1) == batch.y).float().mean()
        return StepOutput(total, None, {"accuracy": accuracy, "biased_accuracy": agreement})
