"""Losses over domain labels: GroupDRO, IRM and CORAL, and balancing by known contexts.

The last is an oracle: what weights or sampling could gain if every sample's context were known. StableNet has to infer
contexts from shallow features; this method reads them, as they are the domains, such as backgrounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from stablenet.algorithms.algorithm import (
    GROUPS,
    SELECTION,
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
from stablenet.values import NonNegative, Share, check_fields
from stablenet.weighting import recommended, solve_dataset


@dataclass(frozen=True, kw_only=True)
class GroupDROSettings:
    """rate: η, how fast a group's weight follows its loss; 0 keeps all groups alike.
    groups: domains, as in DomainBed; or pairs of class and domain, as in the method's paper, where domains are the
        contexts.
    """

    rate: NonNegative = 0.01  # DomainBed, and the paper's code
    groups: Literal["domain", "class-domain"] = "domain"

    def __post_init__(self) -> None:
        check_fields(self)


class GroupDRO(Algorithm[GroupDROSettings]):
    r"""GroupDRO: the worst group's risk, by weights on groups that grow with their losses.

    min_θ max_q Σ_g q_g·L_g(θ) over distributions q on groups of training samples (Sagawa et al., ICLR 2020).

    L_g is the mean cross-entropy of group g's samples in the batch. At each step q_g ← q_g·exp(η·L_g), normalised,
    then the network takes one step on Σ_g q_g·L_g. Groups are domains, or pairs of class and domain.

    Departures: by default groups are domains, as in DomainBed, not pairs of class and attribute as in the paper.
    Where a batch lacks some groups, the weights of these stay as they are, and q is normalised over those present, so
    that the loss keeps its scale. The paper draws groups equally often, adjusts for their sizes and uses strong weight
    decay; here batches are drawn plainly, there is no adjustment, and the weight decay is the run's.
    """

    title = "the worst group's risk, a group being a domain or a class in a domain"
    settings_type = GroupDROSettings
    uses_domains = True
    several_processes = False  # every process would hold weights of its own

    log_q: Tensor

    def __init__(self, network: Network, settings: GroupDROSettings, context: Context) -> None:
        super().__init__(network, settings, context)
        # Logarithms: over a long run a weight may fall below the smallest number, and could never rise again.
        self._classes = context.num_classes if settings.groups == "class-domain" else 1
        self.register_buffer("log_q", start_weights(context, self._classes))

    @classmethod
    def marks(cls, parameters: Mapping[str, Any]) -> str:
        return GROUPS + SELECTION if parameters.get("groups") == "class-domain" else super().marks(parameters)

    def loss(self, batch: Batch) -> StepOutput:
        logits, _ = self.run_network(batch.x)
        per_sample, accuracy = classify(logits, batch.y)
        group = batch.domain if self._classes == 1 else batch.y * self.context.num_domains + batch.domain
        losses, count = mean_by_group(per_sample.detach(), group, len(self.log_q))
        if self.training:
            self.log_q = torch.log_softmax(self.log_q + self.settings.rate * losses, 0)
        weights = weigh_samples(self.log_q, group, count)
        diagnostics = {"worst_loss": losses.max(), "largest_domain_weight": self.log_q.max().exp()}
        return StepOutput(per_sample, weights, {"accuracy": accuracy, **diagnostics})


def start_weights(context: Context, classes: int = 1) -> Tensor:
    """log q (classes · domains,), the same for every training domain; others cannot occur."""
    log_q = torch.full((context.num_domains,), -torch.inf)
    log_q[list(context.training_domains)] = 0.0
    return torch.log_softmax(log_q.repeat(classes), 0)


def mean_by_group(values: Tensor, group: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Means of the values (b,) over each group and numbers of samples, (groups,) each; zero where there are none."""
    empty = values.new_zeros(groups)
    count = empty.index_add(0, group, torch.ones_like(values))
    return empty.index_add(0, group, values) / count.clamp_min(1), count


def weigh_samples(log_q: Tensor, group: Tensor, count: Tensor) -> Tensor:
    """Sample weights (b,), mean one: each present group's share of q, divided among its samples."""
    share = torch.softmax(log_q.masked_fill(count == 0, -torch.inf), 0)
    return (len(group) * share / count.clamp_min(1))[group]


@dataclass(frozen=True, kw_only=True)
class IRMSettings:
    """strength: λ of the penalty.   warmup: share of the epochs before it counts in full."""

    strength: NonNegative = 100.0  # DomainBed
    warmup: Share = 0.1  # DomainBed: 500 of 5,000 steps, with a strength of 1

    def __post_init__(self) -> None:
        check_fields(self)


class IRM(Algorithm[IRMSettings]):
    r"""IRM: features on which one classifier is the best in every domain at once.

    min_Φ Σ_d R_d(Φ) + λ·‖∇_{s|s=1} R_d(s·Φ)‖² (IRMv1; Arjovsky et al., 2019).

    R_d is domain d's mean cross-entropy and s a scalar in front of the logits.

    Departures: the cross-entropy is the mean over samples, which with balanced domains is the mean over domains. A
    domain with a single sample in the batch stays out of the penalty. The square is that of the slope over a domain's
    samples in the batch, as in the authors' coloured digits; the product of the slopes of two halves, which the paper's
    appendix and DomainBed have, is free of bias, but where the halves' signs differ it falls without bound as logits
    grow, and a batch may hold a handful of a domain. Neither form was stable on the embedded digits at λ = 1 (one seed
    each), so that the choice rests on this argument, not on a comparison. Above one, λ divides the whole loss, as the
    authors' experiments do, so that gradients keep their size. The warm-up is counted in epochs, and the optimiser
    keeps its state at its end, where DomainBed starts Adam anew.
    """

    title = "one classifier optimal in every domain"
    settings_type = IRMSettings
    uses_domains = True
    several_processes = False  # the slopes are those of a domain's samples in the whole batch

    strength: Tensor

    def __init__(self, network: Network, settings: IRMSettings, context: Context) -> None:
        super().__init__(network, settings, context)
        self.register_buffer("strength", torch.tensor(self._strength_of(0)))

    def start_epoch(self, epoch: int, training_set: TrainingSet) -> dict[str, float]:
        self.strength.fill_(self._strength_of(epoch))
        return {}

    def loss(self, batch: Batch) -> StepOutput:
        logits, _ = self.run_network(batch.x)
        per_sample, accuracy = classify(logits, batch.y)
        penalty = invariance_penalty(logits.float(), batch.y, batch.domain)
        total = (per_sample + self.strength * penalty) / self.strength.clamp_min(1.0)
        return StepOutput(total, None, {"accuracy": accuracy, "penalty": penalty.detach()})

    def _strength_of(self, epoch: int) -> float:
        warm = epoch < self.settings.warmup * self.context.epochs
        return min(1.0, self.settings.strength) if warm else self.settings.strength


def invariance_penalty(logits: Tensor, y: Tensor, domain: Tensor) -> Tensor:
    """Mean over domains of the squared slope of their risk.   logits: (b, classes).   y, domain: (b,).

    Returns a scalar; zero where no domain has two samples.
    """
    same = (domain[:, None] == domain).to(logits.dtype)
    count = same.sum(1)
    slope = same @ scale_slope(logits, y) / count  # the same for all samples of a domain
    once = (count > 1) / count  # sums to one over a domain that has two samples
    return once @ slope.square() / once.sum().clamp_min(1.0)


def scale_slope(logits: Tensor, y: Tensor) -> Tensor:
    """∂CE(s·logits, y)/∂s at s = 1 of every sample: Σ_k p_k·logit_k − logit_y.   Returns (b,)."""
    expected = (torch.softmax(logits, 1) * logits).sum(1)
    return expected - logits.gather(1, y[:, None]).squeeze(1)


@dataclass(frozen=True, kw_only=True)
class CORALSettings:
    """strength: γ of the distance between domains."""

    strength: NonNegative = 1.0  # DomainBed

    def __post_init__(self) -> None:
        check_fields(self)


class CORAL(Algorithm[CORALSettings]):
    r"""CORAL: features whose means and covariances are alike in all domains.

    min CE + γ·mean over pairs of domains of ‖μ_d − μ_e‖²/m + ‖C_d − C_e‖²_F/m² (Sun & Saenko, 2016).

    μ_d and C_d are the mean and the covariance, with n_d − 1, of the m last features over domain d's samples.

    Departures: as in DomainBed, source domains are aligned with each other instead of a source with a target, the means
    as well, and the distance is not divided by four. A domain with a single sample in the batch has no covariance and
    is left out.
    """

    title = "means and covariances of features alike in all domains"
    settings_type = CORALSettings
    uses_domains = True
    several_processes = False  # means and covariances are those of the whole batch

    def __init__(self, network: Network, settings: CORALSettings, context: Context) -> None:
        super().__init__(network, settings, context)
        network.tap((LAST,))

    def loss(self, batch: Batch) -> StepOutput:
        logits, features = self.run_network(batch.x)
        per_sample, accuracy = classify(logits, batch.y)
        with torch.autocast(batch.x.device.type, enabled=False):
            distance = domain_distance(features[LAST].float(), batch.domain)
        diagnostics = {"accuracy": accuracy, "distance": distance.detach()}
        return StepOutput(per_sample + self.settings.strength * distance, None, diagnostics)


def domain_distance(z: Tensor, domain: Tensor) -> Tensor:
    r"""Mean over pairs of domains of the squared differences of means and covariances.   z: (b, m).   domain: (b,).

    With K domains and ⟨·,·⟩ the sum of products, Σ_{d<e} ‖C_d − C_e‖² = K·Σ_d ‖C_d‖² − ‖Σ_d C_d‖², and
    ⟨C_d, C_e⟩ = Σ_{i∈d, j∈e} (x_i·x_j)² / ((n_d − 1)(n_e − 1)) for rows x_i centred within their domains: no covariance
    matrix is formed, and the cost does not depend on the number of domains. Returns a scalar.
    """
    same = (domain[:, None] == domain).to(z.dtype)
    count = same.sum(1)
    once = (count > 1) / count  # sums to one over a domain that has two samples
    domains = once.sum()
    z = z - z.mean(0)  # changes no difference, and keeps the numbers that are subtracted small
    mean = same @ z / count[:, None]
    means = domains * (once @ mean.square().sum(1)) - (once @ mean).square().sum()
    rows = z - mean
    per_row = (count > 1) / (count - 1).clamp_min(1)
    products = torch.outer(per_row, per_row) * (rows @ rows.T).square()
    covariances = domains * (same * products).sum() - products.sum()
    pairs = (domains * (domains - 1) / 2).clamp_min(1.0)
    return (means / z.shape[1] + covariances / z.shape[1] ** 2) / pairs


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
    r"""min 1/n Σ w_i·CE_i with weights that depend on class c and context k of sample i, or samples drawn by w.

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
