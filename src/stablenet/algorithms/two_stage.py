"""Methods in two stages, of which the first shows what is learned first: JTT, SPARE and EIIL, and what they share."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from stablenet.algorithms.algorithm import Algorithm, Context, StepOutput, TrainingSet, classify
from stablenet.algorithms.domain_losses import mean_by_group, scale_slope, weigh_samples
from stablenet.data.loader import Batch
from stablenet.errors import UserError
from stablenet.long_work import count_steps
from stablenet.models import Network
from stablenet.models.taps import LAST
from stablenet.randomness import combine_seed
from stablenet.values import LARGEST_COUNT, AtLeast, AtMost, Count, NonNegative, Positive, ShareBelowOne, check_fields

S = TypeVar("S")


@dataclass(frozen=True)
class Outputs:
    """A network's outputs for all training samples.   index, y: (n,).   logits: (n, classes) float32."""

    index: Tensor
    y: Tensor
    logits: Tensor

    @property
    def wrong(self) -> Tensor:
        """Whether samples are misclassified, (n,)."""
        return self.logits.argmax(1) != self.y


class TwoStage(Algorithm[S]):
    """The first epochs train a copy of the network by cross-entropy; then `look` is given its outputs for all training
    samples, and the network itself is trained from its initial state in the remaining epochs.

    Both share the run's epochs, optimiser and schedule. Until the second stage the predictor is untrained, and that is
    what the records validate. A run of one epoch has none to spare, and `look` is not called.
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
        """Called between the stages with the first network's outputs; what it returns goes into the records."""

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
    if not logits.isfinite().all():
        raise UserError("the first network's outputs are not finite: lower train.learning_rate")
    order = index.argsort()
    return Outputs(index[order], y[order], logits[order])


@dataclass(frozen=True, kw_only=True)
class JTTSettings:
    """share: of the epochs, rounded up, that train the first network; 0 is ERM.
    upsampling: λ_up, how often its mistakes are drawn relative to all other samples; 1 is ERM in the epochs left.
    """

    share: ShareBelowOne = 0.2  # its paper on Waterbirds: 60 of 300 epochs; on CelebA 1 of 50
    upsampling: Annotated[float, AtLeast(1)] = 100.0  # its paper on Waterbirds; on CelebA 50

    def __post_init__(self) -> None:
        check_fields(self)


class JTT(TwoDraws[JTTSettings]):
    r"""JTT: a first network's mistakes are drawn more often when a second one is trained.

    min_θ λ_up·Σ_{i∈E} CE_i(θ) + Σ_{i∉E} CE_i(θ), E = {i : argmax f_id(x_i) ≠ y_i}.

    Just Train Twice: Improving Group Robustness without Training Group Information (Liu et al., ICML 2021). f_id is
    trained by cross-entropy for a few epochs; E are the training samples that it then misclassifies. A second
    network is trained from the start, with samples of E drawn λ_up times as often. No group labels are used in
    training; the paper chose λ_up, the epochs of f_id and the epoch by the worst group of labelled validation samples.

    Departures: both stages share the run's epochs and schedule, where the paper trains the second network as long as
    ERM; an epoch keeps its length, where upsampling makes it longer. The first network has the weight decay of the run.
    """

    title = "a second network, for which a first one's mistakes are drawn more often"
    settings_type = JTTSettings
    selects_by_groups = True

    def __init__(self, network: Network, settings: JTTSettings, context: Context) -> None:
        super().__init__(network, settings, context, settings.share)

    def look(self, outputs: Outputs) -> dict[str, float]:
        self.draws[outputs.index[outputs.wrong]] = self.settings.upsampling
        return {"mistakes": float(outputs.wrong.float().mean())}


RESTARTS = 10  # of k-means; the best one counts
JUDGED = 2000  # samples of a class that the silhouette is measured on, which takes their number squared


@dataclass(frozen=True, kw_only=True)
class SPARESettings:
    """share: of the epochs, rounded up, that train the network whose outputs are clustered; 0 is ERM.
    clusters: at most, within a class; how many of them is chosen by the silhouette.
    power: λ, samples are drawn by one over the size of their cluster to this power; 0 is ERM in the epochs left.
    """

    share: ShareBelowOne = 0.05  # ours: one or two epochs of a usual run
    clusters: Annotated[int, AtLeast(2), AtMost(LARGEST_COUNT)] = 4
    power: NonNegative = 1.0  # even clusters

    def __post_init__(self) -> None:
        check_fields(self)


class SPARE(TwoDraws[SPARESettings]):
    r"""SPARE: a network's outputs early in training are clustered within classes, and the clusters drawn evenly.

    min_θ Σ_i w_i·CE_i(θ) by sampling, w_i ∝ 1/|V_i|^λ, V_i the cluster of sample i within its class.

    Identifying Spurious Biases Early in Training through the Lens of Simplicity Bias (Yang, Gan, Dziugaite and
    Mirzasoleiman, AISTATS 2024): early in training a network's outputs on most samples of a class are determined by
    what is spuriously correlated with it, so that clusters of outputs within a class separate the groups. Clusters are
    those of k-means on the class probabilities; their number is the one with the best silhouette.

    Departures: λ is a setting, and so is the time of the separation, which the paper determines from the clusters; the
    network trained under sampling starts anew, with the epochs that are left; the silhouette is measured on up to
    2,000 samples of a class; an epoch keeps its length.
    """

    title = "clusters of early outputs within classes, drawn evenly"
    approximation = "written from SPARE's published description: its code was not available"
    settings_type = SPARESettings
    selects_by_groups = True

    def __init__(self, network: Network, settings: SPARESettings, context: Context) -> None:
        super().__init__(network, settings, context, settings.share)

    def look(self, outputs: Outputs) -> dict[str, float]:
        probabilities = outputs.logits.double().softmax(1).cpu().numpy()
        found = 0
        for label in outputs.y.unique().tolist():
            members = (outputs.y == label).cpu().numpy()
            seed = combine_seed(self.context.seed, label) % 2**32  # what scikit-learn takes
            cluster = torch.from_numpy(find_clusters(probabilities[members], self.settings.clusters, seed))
            size = torch.bincount(cluster)[cluster].to(self.draws)
            self.draws[outputs.index[outputs.y == label]] = size**-self.settings.power
            found += len(cluster.unique())
        self.draws /= self.draws.mean()
        return {"clusters": float(found), "largest_draw": float(self.draws.max())}


def find_clusters(rows: NDArray[np.float64], most: int, seed: int) -> NDArray[np.int64]:
    """Clusters (n,) of rows (n, m): as many, from 2 to `most`, as have the best silhouette; one where no two differ."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.metrics import silhouette_score

    different = len(np.unique(rows, axis=0))
    many = len(rows) > JUDGED
    judged = np.random.RandomState(seed).permutation(len(rows))[:JUDGED] if many else np.arange(len(rows))
    best: tuple[float, Any] = (-np.inf, np.zeros(len(rows), np.int64))
    for number in range(2, min(most, different, len(rows) - 1) + 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer clusters than asked for
            found = KMeans(number, n_init=RESTARTS, random_state=seed).fit_predict(rows)
        if len(np.unique(found[judged])) < 2:
            continue  # rows that differ by less than k-means can tell apart, or a cluster that is not among the judged
        score = silhouette_score(rows[judged], found[judged])
        if score > best[0]:
            best = score, found
    return np.asarray(best[1], np.int64)


ENVIRONMENTS = 2


@dataclass(frozen=True, kw_only=True)
class EIILSettings:
    """share: of the epochs, rounded up, that train the reference network; 0 is ERM.
    steps, inference_rate: of Adam on the assignment of samples to environments.
    rate: η of GroupDRO; 0 keeps all groups alike.
    """

    share: ShareBelowOne = 0.05  # ours: early, so that the reference learns only the shortcut
    steps: Count = 10_000  # the authors' published code
    inference_rate: Positive = 0.001  # the authors' published code
    rate: NonNegative = 0.01  # as GroupDRO

    def __post_init__(self) -> None:
        check_fields(self)


class EIIL(TwoStage[EIILSettings]):
    r"""EIIL: environments that a reference network violates most, then GroupDRO over them.

    max_q Σ_e (1/n Σ_i q_i(e)·s_i)², s_i = ∂CE(s·f̃(x_i), y_i)/∂s at s = 1; then GroupDRO over class and environment.

    Environment Inference for Invariant Learning (Creager, Jacobsen and Zemel, ICML 2021). f̃ is a reference network
    trained by cross-entropy. The soft assignment q of the training samples to two environments makes IRM's penalty
    (its published form) of f̃ as large as possible; each sample goes to the likelier environment. Then a network
    is trained from the start by GroupDRO, whose groups are pairs of class and inferred environment.

    Departures: both stages share the run's epochs and schedule; q starts from small random numbers that depend on the
    run's seed. The paper trains with IRM or GroupDRO and its own schedules; only GroupDRO is here, without adjustment
    for group sizes, and a batch's absent groups keep their weight.
    """

    title = "environments that a reference network violates most, then GroupDRO"
    settings_type = EIILSettings
    selects_by_groups = True

    environment: Tensor
    log_q: Tensor

    def __init__(self, network: Network, settings: EIILSettings, context: Context) -> None:
        super().__init__(network, settings, context, settings.share)
        self.register_buffer("environment", torch.zeros(context.num_samples, dtype=torch.int64))
        self.register_buffer("log_q", torch.zeros(ENVIRONMENTS * context.num_classes).log_softmax(0))

    def look(self, outputs: Outputs) -> dict[str, float]:
        generator = torch.Generator().manual_seed(combine_seed(self.context.seed))
        start = torch.randn(len(outputs.y), generator=generator).to(outputs.logits)
        slope = scale_slope(outputs.logits, outputs.y)
        found = infer_environments(slope, start, self.settings.steps, self.settings.inference_rate)
        self.environment[outputs.index] = found
        return {"first_environment": float((found == 0).float().mean())}

    def second_loss(self, batch: Batch) -> StepOutput:
        logits, _ = self.run_network(batch.x)
        per_sample, accuracy = classify(logits, batch.y)
        if not self.first_epochs:
            return StepOutput(per_sample, None, {"accuracy": accuracy})
        group = batch.y * ENVIRONMENTS + self.environment[batch.index]
        losses, count = mean_by_group(per_sample.detach(), group, len(self.log_q))
        if self.training:
            self.log_q = torch.log_softmax(self.log_q + self.settings.rate * losses, 0)
        return StepOutput(per_sample, weigh_samples(self.log_q, group, count), {"accuracy": accuracy})


def infer_environments(slope: Tensor, start: Tensor, steps: int, rate: float) -> Tensor:
    """Environments (n,), 0 or 1, by Adam on the logits of belonging to 0.   slope, start: (n,).

    The slope of −½·[(mean q·s)² + (mean (1 − q)·s)²] is written out: thousands of steps on a few numbers each.
    """
    logits = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.Adam([logits], rate)
    for _ in count_steps(steps, "inferring environments"):
        q = logits.detach().sigmoid()
        here = (q * slope).mean()
        logits.grad = -(2 * here - slope.mean()) * slope * q * (1 - q) / len(slope)
        optimizer.step()
    return (logits.detach() <= 0).long()
