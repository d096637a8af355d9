"""FAR, approximated: moments of features aligned across domains, and what helps the task restored.

In order: a stage that normalises its maps per image and restores what a gate finds useful, and the method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablenet.algorithms.algorithm import Algorithm, Context, StepOutput, classify
from stablenet.data.loader import Batch
from stablenet.errors import UserError
from stablenet.models import Network
from stablenet.values import Count, NonNegative, check_fields

_TINY = 1e-5  # beside a variance
_NARROWEST = 8  # hidden units of a gate: two or four, as small networks would have, may all be dead from the start


class RestoredParts(NamedTuple):
    """Of one stage, (b, c, positions) each: its maps, these normalised, and with the two parts of the residual."""

    maps: Tensor
    normalised: Tensor
    useful: Tensor
    useless: Tensor


class RestoredStage(nn.Module):
    r"""A stage followed by F̃ = (F − μ)/σ over each image's positions, R = F − F̃, a = gate(mean of R), F̃ + a·R.

    F: the stage's maps (b, c, h, w).   μ, σ: (b, c).   a: (b, c) in (0, 1); a = 1 gives F back as it was.
    """

    def __init__(self, stage: nn.Module, channels: int, reduction: int) -> None:
        super().__init__()
        self.stage = stage
        self.channels = channels
        narrow = max(_NARROWEST, channels // reduction)
        self.gate = nn.Sequential(nn.Linear(channels, narrow), nn.ReLU(), nn.Linear(narrow, channels), nn.Sigmoid())
        self._parts: RestoredParts | None = None

    def forward(self, maps: Tensor) -> Tensor:
        maps = self.stage(maps)
        if maps.ndim != 4 or maps.shape[1] != self.channels:
            raise UserError(
                f"FAR expected maps of {self.channels} channels and got {tuple(maps.shape)}: "
                "choose a backbone whose stages end in BatchNorm, such as a ResNet"
            )
        parts = self.split(maps.flatten(2))
        if self.training:
            self._parts = parts
        return parts.useful.view_as(maps)

    def split(self, maps: Tensor) -> RestoredParts:
        """maps: (b, c, positions)."""
        variance, mean = torch.var_mean(maps, 2, correction=0, keepdim=True)
        normalised = (maps - mean) * torch.rsqrt(variance + _TINY)
        residual = maps - normalised
        gate = self.gate(residual.mean(2))[:, :, None]
        return RestoredParts(maps, normalised, normalised + gate * residual, normalised + (1 - gate) * residual)

    def take_parts(self) -> RestoredParts:
        """What the latest pass in training mode gave; once, so that its graph is not kept."""
        assert self._parts is not None
        parts, self._parts = self._parts, None
        return parts


def restore_stages(network: Network, reduction: int) -> list[RestoredStage]:
    """Put a `RestoredStage` in the place of every stage of a network."""
    if not network.stages:
        raise UserError("FAR works on the stages of a backbone, and this one names none: choose for example a ResNet")
    restored = []
    for name, path in network.stages.items():
        stage = network.body.get_submodule(path)
        norms = [module for module in stage.modules() if isinstance(module, nn.BatchNorm2d)]
        if not norms:
            raise UserError(
                f"FAR normalises convolutional maps, and {name} of this backbone has no BatchNorm2d: "
                "choose one that has, such as a ResNet"
            )
        restored.append(RestoredStage(stage, norms[-1].num_features, reduction))
        network.body.set_submodule(path, restored[-1])
    return restored


@dataclass(frozen=True, kw_only=True)
class FARSettings:
    """alignment, ranking, auxiliary: weights of the three terms beside cross-entropy.
    reduction: how many times narrower a gate's hidden layer is than its stage; never below 8 units.
    """

    alignment: NonNegative = 0.01  # ours: the method's own is not public
    ranking: NonNegative = 0.01  # of the published sibling
    auxiliary: NonNegative = 0.01  # of the published sibling
    reduction: Count = 16  # of the published sibling

    def __post_init__(self) -> None:
        check_fields(self)


class FAR(Algorithm[FARSettings]):
    r"""An approximation of Feature Alignment and Restoration (Jin et al., 2020): its formula is not public in code.

    Every stage's maps F become F̃ + a·R, with F̃ normalised per image, R = F − F̃ the residual and a ∈ (0, 1) a gate on R
    (`RestoredStage`): useful F⁺ = F̃ + a·R, useless F⁻ = F̃ + (1 − a)·R. With h the entropy of the class probabilities
    that the stage's own linear classifier gives for maps averaged over positions,

        CE + Σ_stages λ_align·align(z) + λ_rank·[softplus(h(F⁺) − h(F̃)) + softplus(h(F̃) − h(F⁻))] + λ_aux·CE(F⁺).

    z is F̃ summed over positions with attention Σ_c F²_cp / Σ_cp F² as weights; align is the mean square distance of the
    domains' first and second moments of z from their mean over domains.

    Known of the method: the moments of attentively selected features are aligned across domains, task-relevant features
    are restored from the residual, a dual ranking loss on entropies parts them from the others. Taken from its authors'
    published sibling (style normalisation and restitution): the gate, the ranking and the auxiliary classifiers with
    their weights. Ours: the attention, the moments and their weight, and a normalisation without parameters of its own.
    Because stages are changed, there is no strength at which it is ERM; with all gates open its logits are ERM's.
    """

    title = "features aligned across domains, the useful rest restored (an approximation)"
    approximation = "written from FAR's description and a published sibling: its alignment formula is not public"
    settings_type = FARSettings
    uses_domains = True
    one_plain_pass = False  # the loss reads what stages leave behind
    several_processes = False  # moments are those of the whole batch

    def __init__(self, network: Network, settings: FARSettings, context: Context) -> None:
        super().__init__(network, settings, context)
        restored = restore_stages(network, settings.reduction)
        self.classifiers = nn.ModuleList(nn.Linear(stage.channels, context.num_classes) for stage in restored)
        self._stages = tuple(restored)  # they belong to the network

    def loss(self, batch: Batch) -> StepOutput:
        logits, _ = self.run_network(batch.x)
        per_sample, accuracy = classify(logits, batch.y)
        place, settings = self.place_domains(batch.domain), self.settings
        alignment = ranking = auxiliary = per_sample.new_zeros(())
        with torch.autocast(batch.x.device.type, enabled=False):
            for stage, classifier in zip(self._stages, self.classifiers, strict=True):
                parts = RestoredParts(*(part.float() for part in stage.take_parts()))
                alignment = alignment + align_moments(attend(parts), place, len(self.context.training_domains))
                ranks, loss = rank_entropies(parts, classifier, batch.y)
                ranking, auxiliary = ranking + ranks, auxiliary + loss
        diagnostics = {"alignment": alignment, "ranking": ranking.mean(), "auxiliary": auxiliary.mean()}
        total = per_sample + settings.alignment * alignment + settings.ranking * ranking
        total = total + settings.auxiliary * auxiliary
        return StepOutput(
            total, None, {"accuracy": accuracy, **{name: term.detach() for name, term in diagnostics.items()}}
        )


def attend(parts: RestoredParts) -> Tensor:
    """Normalised maps (b, c, positions) summed over positions, weighted by their share of the squared maps: (b, c)."""
    squares = parts.maps.detach().square().sum(1, keepdim=True)
    attention = squares / squares.sum(2, keepdim=True).clamp_min(torch.finfo(squares.dtype).tiny)
    return (attention * parts.normalised).sum(2)


def align_moments(z: Tensor, place: Tensor, domains: int) -> Tensor:
    """How far the domains' means of z and of z² lie from their mean over the domains that are present.

    z: (b, m).   place: (b,) domains from 0 to `domains` − 1.
    Returns a scalar, the mean over domains and features; 0 with a single domain.
    """
    member = functional.one_hot(place, domains).to(z.dtype)
    count = member.sum(0)
    present = (count > 0).to(z.dtype)
    share = present / present.sum()
    distance = z.new_zeros(())
    for moment in (z, z.square()):
        means = member.T @ moment / count.clamp_min(1)[:, None]
        centre = share @ means
        distance = distance + (share @ (means - centre).square()).mean()
    return distance


def entropy(logits: Tensor) -> Tensor:
    """−Σ_c p_c·log p_c of the softmax of logits (b, classes): (b,)."""
    logs = torch.log_softmax(logits, 1)
    return -(logs.exp() * logs).sum(1)


def rank_entropies(parts: RestoredParts, classifier: nn.Module, y: Tensor) -> tuple[Tensor, Tensor]:
    """The dual ranking loss (b,), small where useful parts make sure and useless ones unsure; CE of the useful (b,)."""
    logits = [classifier(part.mean(2)) for part in (parts.normalised, parts.useful, parts.useless)]
    normalised, useful, useless = (entropy(each) for each in logits)
    ranking = functional.softplus(useful - normalised) + functional.softplus(normalised - useless)
    return ranking, functional.cross_entropy(logits[1], y, reduction="none")
