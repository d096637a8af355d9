"""FAR, approximated: moments of features aligned across domains, and what helps the task restored."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablenet.algorithms.base import Algorithm, Context, StepOutput, classify
from stablenet.algorithms.far_blocks import Parts, restore_stages
from stablenet.data.pipeline import Batch
from stablenet.models import Network
from stablenet.values import Count, NonNegative, check_fields


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
                parts = Parts(*(part.float() for part in stage.take_parts()))
                alignment = alignment + align_moments(attend(parts), place, len(self.context.training_domains))
                ranks, loss = rank_entropies(parts, classifier, batch.y)
                ranking, auxiliary = ranking + ranks, auxiliary + loss
        told = {"alignment": alignment, "ranking": ranking.mean(), "auxiliary": auxiliary.mean()}
        total = per_sample + settings.alignment * alignment + settings.ranking * ranking
        total = total + settings.auxiliary * auxiliary
        return StepOutput(total, None, {"accuracy": accuracy, **{name: term.detach() for name, term in told.items()}})


def attend(parts: Parts) -> Tensor:
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


def rank_entropies(parts: Parts, classifier: nn.Module, y: Tensor) -> tuple[Tensor, Tensor]:
    """The dual ranking loss (b,), small where useful parts make sure and useless ones unsure; CE of the useful (b,)."""
    logits = [classifier(part.mean(2)) for part in (parts.normalised, parts.useful, parts.useless)]
    normalised, useful, useless = (entropy(each) for each in logits)
    ranking = functional.softplus(useful - normalised) + functional.softplus(normalised - useless)
    return ranking, functional.cross_entropy(logits[1], y, reduction="none")
