"""GroupDRO: the worst domain's risk, by weights on domains that grow with their losses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.algorithms.algorithm import Algorithm, Context, StepOutput, classify
from stablenet.data.loader import Batch
from stablenet.models import Network
from stablenet.values import NonNegative, check_fields


@dataclass(frozen=True, kw_only=True)
class GroupDROSettings:
    """rate: η, how fast a domain's weight follows its loss; 0 keeps all domains alike."""

    rate: NonNegative = 0.01  # DomainBed

    def __post_init__(self) -> None:
        check_fields(self)


class GroupDRO(Algorithm[GroupDROSettings]):
    r"""min_θ max_q Σ_d q_d·L_d(θ) over distributions q on the training domains (Sagawa et al., ICLR 2020).

    L_d is the mean cross-entropy of domain d's samples in the batch. At each step q_d ← q_d·exp(η·L_d), normalised,
    then the network takes one step on Σ_d q_d·L_d.

    Departures: groups are domains, as in DomainBed, not pairs of class and attribute. Where a batch lacks some domains,
    the weights of these stay as they are, and q is normalised over those present, so that the loss keeps its scale.
    The paper's adjustment for group sizes and its strong weight decay are left to the user.
    """

    title = "the worst domain's risk"
    settings_type = GroupDROSettings
    uses_domains = True
    several_processes = False  # every process would hold weights of its own

    log_q: Tensor

    def __init__(self, network: Network, settings: GroupDROSettings, context: Context) -> None:
        super().__init__(network, settings, context)
        # Logarithms: over a long run a weight may fall below the smallest number, and could never rise again.
        self.register_buffer("log_q", start_weights(context))

    def loss(self, batch: Batch) -> StepOutput:
        logits, _ = self.run_network(batch.x)
        per_sample, accuracy = classify(logits, batch.y)
        losses, count = mean_by_domain(per_sample.detach(), batch.domain, self.context.num_domains)
        if self.training:
            self.log_q = torch.log_softmax(self.log_q + self.settings.rate * losses, 0)
        weights = weigh_samples(self.log_q, batch.domain, count)
        told = {"worst_loss": losses.max(), "largest_domain_weight": self.log_q.max().exp()}
        return StepOutput(per_sample, weights, {"accuracy": accuracy, **told})


def start_weights(context: Context) -> Tensor:
    """log q (domains,), the same for every training domain; others cannot occur."""
    log_q = torch.full((context.num_domains,), -torch.inf)
    log_q[list(context.training_domains)] = 0.0
    return torch.log_softmax(log_q, 0)


def mean_by_domain(values: Tensor, domain: Tensor, num_domains: int) -> tuple[Tensor, Tensor]:
    """Means of the values (b,) over each domain and numbers of samples, (domains,) each; zero where there are none."""
    empty = values.new_zeros(num_domains)
    count = empty.index_add(0, domain, torch.ones_like(values))
    return empty.index_add(0, domain, values) / count.clamp_min(1), count


def weigh_samples(log_q: Tensor, domain: Tensor, count: Tensor) -> Tensor:
    """Sample weights (b,), mean one: each present domain's share of q, divided among its samples."""
    share = torch.softmax(log_q.masked_fill(count == 0, -torch.inf), 0)
    return (len(domain) * share / count.clamp_min(1))[domain]
