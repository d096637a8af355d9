"""GroupDRO: the worst group's risk, by weights on groups that grow with their losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from stablenet.algorithms.algorithm import GROUPS, SELECTION, Algorithm, Context, StepOutput, classify
from stablenet.data.loader import Batch
from stablenet.models import Network
from stablenet.values import NonNegative, check_fields


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
    r"""min_θ max_q Σ_g q_g·L_g(θ) over distributions q on groups of training samples (Sagawa et al., ICLR 2020).

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
        told = {"worst_loss": losses.max(), "largest_domain_weight": self.log_q.max().exp()}
        return StepOutput(per_sample, weights, {"accuracy": accuracy, **told})


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
