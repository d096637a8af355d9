"""RSC: the network has to do without the features it relies on most."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from stablenet.algorithms.algorithm import Algorithm, Context, StepOutput, TrainingSet, classify
from stablenet.data.loader import Batch
from stablenet.models import Network
from stablenet.randomness import StepDraws
from stablenet.values import Count, Filled, Share, check_fields

LEAST_FALL = 1e-4  # of the probability, for a mask to count as felt (published code)


@dataclass(frozen=True, kw_only=True)
class RSCSettings:
    """Defaults: the method's published code.

    fractions: of the batch, whose masks are kept; the next one every `every` epochs, the last one stays.
    spatial: probability that positions are muted, else channels.   positions, channels: which share of them.
    mirror: every image comes with its mirror image.
    """

    fractions: Annotated[tuple[Share, ...], Filled()] = (0.3, 0.5, 0.7)
    every: Count = 10
    spatial: Share = 0.5
    positions: Share = 1 / 3
    channels: Share = 1 / 3.2
    mirror: bool = True

    def __post_init__(self) -> None:
        check_fields(self)


class RSC(Algorithm[RSCSettings]):
    r"""min 1/n Σ CE(g(m_i ⊙ z_i), y_i): z_i are the last convolutional maps of image i (C, H, W), g what follows them,
    and the mask m_i mutes what g's answer for y_i rests on.

    With G = ∂g(z)_y/∂z and ḡ_c = mean_hw G_chw, either the third of positions with the largest Σ_c ḡ_c·z_chw, or the
    1/3.2 of channels with the largest ḡ_c is set to zero, by a coin for the whole batch. Only those samples keep their
    mask whose probability of y falls most by it.

    After Huang et al., Self-Challenging Improves Cross-Domain Generalization, ECCV 2020, and its published code.
    Departures: a mask never takes all positions or channels, so maps of a single position lose channels or nothing;
    the losses of an image and of its mirror image are averaged into one; of several processes each chooses among its
    own samples. The published code, like JiGen's from which it grew, trains on 222 pixels; the recipes take 224, as for
    the other methods.
    """

    title = "mutes the features the network relies on most"
    settings_type = RSCSettings
    replayable = True
    one_plain_pass = False  # the classifier looks twice before it learns, and mirror images double the batch
    fraction: Tensor

    def __init__(self, network: Network, settings: RSCSettings, context: Context) -> None:
        super().__init__(network, settings, context)
        network.require_maps()
        self.draws = StepDraws(context.seed)
        self.register_buffer("fraction", torch.tensor(settings.fractions[0]))

    def start_epoch(self, epoch: int, training_set: TrainingSet) -> dict[str, float]:
        fractions = self.settings.fractions
        self.fraction.fill_(fractions[min(epoch // self.settings.every, len(fractions) - 1)])
        return {}

    def loss(self, batch: Batch) -> StepOutput:
        images, y = batch.x, batch.y
        if self.settings.mirror:
            images, y = torch.cat([images, images.flip(3)]), torch.cat([y, y])
        maps = self.network.forward_maps(images)
        kept = self.choose_masks(maps.detach(), y)
        logits = self.network.forward_head(self.network.forward_tail(maps * kept))
        per_sample, accuracy = classify(logits, y)
        muted = (~kept).flatten(1).any(1).float().mean()
        told = {"accuracy": accuracy, "muted": muted}
        return StepOutput(per_sample.view(-1, len(batch.y)).mean(0), None, told)

    def choose_masks(self, maps: Tensor, y: Tensor) -> Tensor:
        """Maps (b, C, H, W) without a graph, y (b,) -> what is kept of them, (b, C, H, W) bool.

        Dropout and its like are off while masks are chosen.
        """
        training = self.network.training
        self.network.eval()
        try:
            with torch.enable_grad():
                maps = maps.requires_grad_()
                logits = self._answer(maps)
                (gradient,) = torch.autograd.grad(logits.gather(1, y.unsqueeze(1)).sum(), maps)
            with torch.no_grad():
                coin = self.draws(y.new_zeros(1), 1)
                kept = mute(maps, gradient, coin < self.settings.spatial, self.settings)
                fall = own_probability(logits, y) - own_probability(self._answer(maps * kept), y)
                return kept | ~choose_samples(fall, self.fraction).view(-1, 1, 1, 1)
        finally:
            self.network.train(training)

    def _answer(self, maps: Tensor) -> Tensor:
        return self.network.forward_head(self.network.forward_tail(maps))


def mute(maps: Tensor, gradient: Tensor, spatial: Tensor, settings: RSCSettings) -> Tensor:
    """What is kept when each sample's strongest positions, or channels, are muted: (b, C, H, W) bool.

    maps, gradient: (b, C, H, W).   spatial: a bool for all samples.
    """
    importance = gradient.float().mean((2, 3), keepdim=True)
    positions = (maps.float() * importance).sum(1, keepdim=True)
    by_position = ~find_largest(positions.flatten(1), settings.positions).view_as(positions)
    by_channel = ~find_largest(importance.flatten(1), settings.channels).view_as(importance)
    return torch.where(spatial, by_position, by_channel).expand_as(maps)


def find_largest(values: Tensor, share: float) -> Tensor:
    """In each row of (b, n) the ⌈share·n⌉ largest, but never all: (b, n) bool."""
    number = values.shape[1]
    count = min(math.ceil(share * number), number - 1)
    top = values.topk(count, 1).indices
    return torch.zeros_like(values, dtype=torch.bool).scatter_(1, top, True)


def choose_samples(fall: Tensor, fraction: Tensor) -> Tensor:
    """The fraction of samples whose probability falls most, if it falls at all: fall (b,) -> (b,) bool."""
    rank = fall.argsort(descending=True, stable=True).argsort()
    return (rank < (fraction * len(fall)).round()) & (fall > LEAST_FALL)


def own_probability(logits: Tensor, y: Tensor) -> Tensor:
    """The probability of each sample's own class (b,)."""
    return logits.float().softmax(1).gather(1, y.unsqueeze(1)).squeeze(1)
