"""Epi-FCR: features and a classifier that work with partners which never saw the sample's domain."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablenet.algorithms.algorithm import Algorithm, Context, StepOutput, classify
from stablenet.data.loader import Batch
from stablenet.models import Network
from stablenet.models.network import freeze_batchnorm
from stablenet.randomness import StepDraws
from stablenet.values import NonNegative, Whole, check_fields


@dataclass(frozen=True, kw_only=True)
class EpiFCRSettings:
    """feature: λ_f of another domain's classifier on the features.   classifier: λ_c of the classifier on another
    domain's features.   random: λ_r of the random classifier.   warmup: steps of plain cross-entropy before them.
    freeze_batchnorm: keep the statistics the networks started with; right where these were trained before.
    """

    feature: NonNegative = 2.0  # published script
    classifier: NonNegative = 0.05  # published script
    random: NonNegative = 0.1  # published script
    warmup: Whole = 500  # published script
    freeze_batchnorm: bool = True  # published script

    def __post_init__(self) -> None:
        check_fields(self)


class EpiFCR(Algorithm[EpiFCRSettings]):
    r"""Episodic training of features f and a classifier g, also against a random classifier (Li et al., ICCV 2019).

    Every domain d has a network g_d∘f_d of its own, trained by cross-entropy on its samples alone. The network g∘f that
    is kept takes one step on the mean over the batch of

        CE(g(f(x)), y) + λ_r·CE(r(f(x)), y) + [x of domain j]·(λ_c·CE(g(f_i(x)), y) + λ_f·CE(g_i(f(x)), y)),

    with r a random linear layer that never changes, j a random domain of the batch and i ≠ j another one. These terms
    move f and g alone: f_i and g_i are constants in them. Before `warmup` steps are done only the first term counts.

    Departures: the published loss is the sum of the domains' means; with balanced domains this one is that sum divided
    by the number of domains, for both kinds of networks, which recipes make up for with the rate and the weight decay.
    Both kinds take their step at once and on the same samples, where the published code steps the domains' networks
    first, on batches of their own; the engine's one optimiser serves all, as its steps do not mix parameters. As a
    partner a domain's network is in eval mode: BatchNorm keeps to its own domain, and nothing is dropped out.
    """

    title = "features and classifier that work with other domains' partners"
    settings_type = EpiFCRSettings
    uses_domains = True
    one_plain_pass = False
    several_processes = False  # a process whose share lacks a domain would leave its network without a gradient

    random_weight: Tensor
    random_bias: Tensor

    def __init__(self, network: Network, settings: EpiFCRSettings, context: Context) -> None:
        super().__init__(network, settings, context)
        self.domain_networks = nn.ModuleList(renew_head(deepcopy(network)) for _ in context.training_domains)
        frozen = nn.Linear(network.width, context.num_classes)
        self.register_buffer("random_weight", frozen.weight.detach())
        self.register_buffer("random_bias", frozen.bias.detach())
        self.draws = StepDraws(context.seed)

    def train(self, mode: bool = True) -> EpiFCR:
        super().train(mode)
        if self.settings.freeze_batchnorm:
            freeze_batchnorm(self)
        return self

    def loss(self, batch: Batch) -> StepOutput:
        rows = self.split_rows(batch.domain)
        features = self.network.forward_features(batch.x)
        aggregate, accuracy = classify(self.network.forward_head(features), batch.y)
        own = self._train_domains(batch, rows)
        warm = int(self.draws.step) < self.settings.warmup
        chance = self.draws(torch.zeros(1, dtype=torch.int64, device=batch.x.device), 2)[0].tolist()
        told = {"accuracy": accuracy, "domain_loss": own.detach().mean()}
        total = aggregate + own
        if not warm:
            total = total + self._random_term(features, batch.y) + self._cross_terms(features, batch, rows, chance)
        return StepOutput(total, None, {**told, "aggregate_loss": (total - own).detach().mean()})

    def _train_domains(self, batch: Batch, rows: Sequence[Tensor]) -> Tensor:
        """Cross-entropy (b,) of every sample under its own domain's network."""
        losses = [classify(self._domain(d)(batch.x[row]), batch.y[row])[0] for d, row in enumerate(rows) if len(row)]
        return torch.cat(losses)[torch.cat(list(rows)).argsort()]

    def _random_term(self, features: Tensor, y: Tensor) -> Tensor:
        """λ_r·CE(r(f(x)), y), (b,)."""
        return self.settings.random * classify(functional.linear(features, self.random_weight, self.random_bias), y)[0]

    def _cross_terms(self, features: Tensor, batch: Batch, rows: Sequence[Tensor], chance: Sequence[float]) -> Tensor:
        """What the chosen domain's samples add, (b,); zero for all others."""
        held_out, partner = choose_pair([len(row) > 0 for row in rows], chance)
        row, network = rows[held_out], self._domain(partner)
        y = batch.y[row]
        by_classifier = classify(self.network.forward_head(self._partner_features(network, batch.x[row])), y)[0]
        head = network.head
        by_features = classify(functional.linear(features[row], head.weight.detach(), head.bias.detach()), y)[0]
        added = self.settings.classifier * by_classifier + self.settings.feature * by_features
        return torch.zeros_like(features[:, 0], dtype=added.dtype).index_put((row,), added)

    @torch.no_grad()
    def _partner_features(self, network: Network, images: Tensor) -> Tensor:
        modes = [(module, module.training) for module in network.modules()]
        features = network.eval().forward_features(images)
        for module, training in modes:
            module.training = training
        return features

    def _domain(self, place: int) -> Network:
        return cast(Network, self.domain_networks[place])


def renew_head(network: Network) -> Network:
    """The network with a new classifier, so that domains do not start with the same one."""
    network.head.reset_parameters()
    return network


def choose_pair(present: Sequence[bool], chance: Sequence[float]) -> tuple[int, int]:
    """A random domain among those present in the batch, and a random other one.   chance: two numbers in [0, 1)."""
    there = [place for place, is_there in enumerate(present) if is_there]
    held_out = there[int(chance[0] * len(there))]
    partner = int(chance[1] * (len(present) - 1))
    return held_out, partner + (partner >= held_out)
