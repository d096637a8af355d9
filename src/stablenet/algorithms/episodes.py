"""Training in which one domain plays the part of the unseen one: Epi-FCR and MetaReg.

In Epi-FCR features and classifier are trained to work with partners that never saw the sample's domain. MetaReg learns
a penalty on the classifier's weights, so that a step on one domain helps on another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablenet.algorithms.algorithm import Algorithm, Context, StepOutput, Stepper, TrainingSet, classify
from stablenet.data.loader import Batch
from stablenet.long_work import count_steps
from stablenet.models import Network
from stablenet.models.network import freeze_batchnorm
from stablenet.randomness import StepDraws, combine
from stablenet.values import Count, NonNegative, Positive, ShareBelowOne, Whole, check_fields


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
        diagnostics = {"accuracy": accuracy, "domain_loss": own.detach().mean()}
        total = aggregate + own
        if not warm:
            total = total + self._random_term(features, batch.y) + self._cross_terms(features, batch, rows, chance)
        return StepOutput(total, None, {**diagnostics, "aggregate_loss": (total - own).detach().mean()})

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


@dataclass(frozen=True, kw_only=True)
class MetaRegSettings:
    """meta_share: of the epochs, rounded up, in which the regulariser is learned; the last epoch is never one of them.
    inner_steps, inner_rate: l and α, the unrolled steps on one domain.   phi_rate: of the steps on φ.
    strength: factor of R_φ when the pooled model is trained; 0 is ERM.
    """

    meta_share: ShareBelowOne = 0.25  # its paper's share is not known
    inner_steps: Count = 3  # not known either
    inner_rate: Positive = 0.01  # ten times as much overshoots on the 512 features of a ResNet-18
    phi_rate: NonNegative = 0.01
    strength: NonNegative = 1.0

    def __post_init__(self) -> None:
        check_fields(self)


class MetaReg(Algorithm[MetaRegSettings]):
    r"""R_φ(θ) = Σ_k φ_k·|θ_k| over the classifier's weights θ, φ learned across domains (Balaji et al., 2018).

    First epochs: shared features ψ and a classifier θ_d for every source d take steps on CE(θ_{d(x)} ∘ ψ(x), y). After
    each of them two domains a ≠ b are drawn, and from β_0 = θ_a

        β_{i+1} = β_i − α·∇_β [CE_a(β_i) + R_φ(β_i)], i < l,     φ ← max(0, φ − η·∇_φ CE_b(β_l)).

    Further epochs: a fresh pooled model, the predictor, is trained on CE + strength·R_φ(θ) with φ fixed. Until then the
    predictor is untrained, and that is what the records of the first epochs validate.

    Departures, and choices where its rates, l and numbers of steps are not known to us: one step on all domains of a
    batch in place of one step each; ψ(x) is that of before the step, and all l steps see the same samples; φ starts at
    0 and is kept from becoming negative, where R_φ would have no minimum; classifiers start as copies of the pooled
    one. A batch of a single domain leaves φ as it is, and a run of one epoch, with none to spare for φ, is ERM.
    """

    title = "a penalty on the classifier learned across domains, then a fresh pooled model under it"
    settings_type = MetaRegSettings
    approximation = "MetaReg's rates, step counts and the steps it unrolls are not published: those here are our own"
    uses_domains = True
    one_plain_pass = False  # the first epochs train another network
    several_processes = False  # the unrolled steps want a whole batch
    phi: Tensor
    learns: Tensor
    updates: Tensor

    def __init__(self, network: Network, settings: MetaRegSettings, context: Context) -> None:
        super().__init__(network, settings, context)
        self.meta_epochs = min(math.ceil(settings.meta_share * context.epochs), context.epochs - 1)
        self.shared = deepcopy(network.body)
        pooled = join_head(network.head).detach()
        self.heads = nn.Parameter(pooled.repeat(len(context.training_domains), 1, 1))
        self.register_buffer("phi", torch.zeros_like(pooled))
        self.register_buffer("learns", torch.tensor(self.meta_epochs > 0))  # whether φ does, now
        self.register_buffer("updates", torch.tensor(0))
        self._features: Tensor | None = None

    def start_epoch(self, epoch: int, training_set: TrainingSet) -> dict[str, float]:
        self.learns.fill_(epoch < self.meta_epochs)
        if epoch != self.meta_epochs or not self.meta_epochs:
            return {}
        return {"mean_phi": float(self.phi.mean()), "largest_phi": float(self.phi.max())}

    def trains_predictor(self) -> bool:
        return not self.learns

    def loss(self, batch: Batch) -> StepOutput:
        if self.learns:
            return self._loss_by_domain(batch)
        logits, _ = self.run_network(batch.x)
        per_sample, accuracy = classify(logits, batch.y)
        regulariser = penalise(join_head(self.network.head), self.phi)
        diagnostics = {"accuracy": accuracy, "regulariser": regulariser.detach()}
        return StepOutput(per_sample + self.settings.strength * regulariser, None, diagnostics)

    def step(self, batch: Batch, stepper: Stepper) -> StepOutput:
        """In the first epochs φ takes a step of its own, through steps that are thrown away."""
        output = stepper.loss(batch)
        stepper.descend(output)
        if not self.learns:
            return output
        meta_loss = self._update_phi(batch)
        return replace(output, diagnostics={**output.diagnostics, "meta_loss": meta_loss})

    def _loss_by_domain(self, batch: Batch) -> StepOutput:
        """Every sample through the classifier of its own domain."""
        features = self.shared(batch.x)
        with torch.autocast(batch.x.device.type, enabled=False):
            rows = append_one(features.float())
            self._features = rows.detach()
            logits = torch.einsum("bw,bcw->bc", rows, self.heads[self.place_domains(batch.domain)])
            per_sample, accuracy = classify(logits, batch.y)
        diagnostics = {"accuracy": accuracy, "regulariser": penalise(self.heads.detach(), self.phi)}
        return StepOutput(per_sample, None, diagnostics)

    def _update_phi(self, batch: Batch) -> Tensor:
        """CE_b after the unrolled steps, a scalar; NaN where the batch has one domain."""
        assert self._features is not None
        rows, self._features = self._features, None
        place = self.place_domains(batch.domain)
        present = place.unique()
        self.updates += 1
        if len(present) < 2:
            return rows.new_full((), float("nan"))
        a, b = present[combine(self.context.seed, self.updates, present).argsort()[:2]]
        chosen = self.settings
        with torch.enable_grad():
            phi = self.phi.clone().requires_grad_()
            on_a, on_b = place == a, place == b
            head = unroll(self.heads[a].detach(), phi, rows[on_a], batch.y[on_a], chosen.inner_steps, chosen.inner_rate)
            meta_loss = functional.cross_entropy(rows[on_b] @ head.T, batch.y[on_b])
            (gradient,) = torch.autograd.grad(meta_loss, phi)
        self.phi.sub_(chosen.phi_rate * gradient).clamp_(min=0)
        return meta_loss.detach()


def join_head(head: nn.Linear) -> Tensor:
    """Weights and biases in one matrix (classes, width + 1)."""
    return torch.cat([head.weight, head.bias[:, None]], 1)


def append_one(features: Tensor) -> Tensor:
    """(b, width) -> (b, width + 1): what a joined classifier is multiplied with."""
    return torch.cat([features, features.new_ones(len(features), 1)], 1)


def penalise(head: Tensor, phi: Tensor) -> Tensor:
    """R_φ = Σ φ_k·|θ_k|, averaged over classifiers.   head: (…, classes, width + 1).   phi: (classes, width + 1)."""
    return (phi * head.abs()).sum((-2, -1)).mean()


def unroll(head: Tensor, phi: Tensor, rows: Tensor, y: Tensor, steps: int, rate: float) -> Tensor:
    """The classifier (classes, width + 1) after gradient steps on CE + R_φ, as a function of φ.

    rows: (n, width + 1) features of one domain, each with a one at its end.   y: (n,).
    """
    head = head.requires_grad_()
    for _ in count_steps(steps, "training a domain's classifier"):
        loss = functional.cross_entropy(rows @ head.T, y) + penalise(head, phi)
        (gradient,) = torch.autograd.grad(loss, head, create_graph=True)
        head = head - rate * gradient
    return head
