"""A biased network trained beside the one that counts: LfF weighs samples by it, Logit Correction shifts logits."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.algorithms.algorithm import Algorithm, Context, StepOutput, UsedWeights, classify
from stablenet.algorithms.ula import tabulate
from stablenet.data.loader import Batch
from stablenet.models import Network
from stablenet.values import NonNegative, ShareBelowOne, check_fields


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
    r"""LfF: two networks at once, one made to trust what is easy, one that learns from what the first finds hard.

    min_{θ,b} 1/n Σ_i W_i·CE(g_θ(x_i), y_i) + q·p_b(y_i | x_i)^q·CE(g_b(x_i), y_i), W_i = ℓ_b/(ℓ_b + ℓ_θ).

    Learning from Failure: Training Debiased Classifier from Biased Classifier (Nam, Cha, Ahn, Lee and Shin, NeurIPS
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
    """strength: η, the power of the table's probabilities; 0 is ERM beside a network of no effect.
    amplification: q of the biased network's generalised cross-entropy.
    memory: of the moving average that the table is.
    """

    strength: NonNegative = 1.0  # the authors' published code
    amplification: NonNegative = 0.7  # the authors' published code
    memory: ShareBelowOne = 0.5  # of a published re-implementation by uLA's authors

    def __post_init__(self) -> None:
        check_fields(self)


class LC(Algorithm[LCSettings]):
    r"""Logit Correction: logits shifted by how often classes go with what a biased network, trained beside, predicts.

    min_{θ,b} 1/n Σ_i CE(g_θ(x_i) + log(p(ŷ_i, ·)^η + 10⁻⁴), y_i) + q·p_b(y_i | x_i)^q·CE(g_b(x_i), y_i).

    Avoiding spurious correlations via logit correction (Liu, Zhang, Sekhar, Wu, Singhal and Fernandez-Granda, ICLR
    2023). g_b is a biased network as in LfF, ŷ_i the class that it predicts. The table p(ŷ, y) of classes × classes
    is a moving average over batches of Σ_i p_b(ŷ | x_i)·[y_i = y]/b. g_θ predicts, without the shift. No group labels
    are used in training.

    Departures: the paper's GroupMixUp, which mixes images of rare pairs of class and predicted class with others of
    the same class, is left out. Both networks start from the same body, each with a new last layer, and share the
    run's optimiser. The table starts uniform.
    """

    title = "logits shifted by how classes go with what a biased network predicts"
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
