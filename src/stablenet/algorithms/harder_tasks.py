"""Harder tasks for one network, without domain labels: JiGen and RSC.

In JiGen the network also learns how the tiles of an image were permuted. In RSC it has to manage without the features
it relies on most.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache
from math import factorial
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from stablenet.algorithms.algorithm import Algorithm, Context, StepOutput, TrainingSet, classify
from stablenet.data.loader import Batch
from stablenet.errors import UserError
from stablenet.models import Network
from stablenet.models.taps import LAST
from stablenet.randomness import StepDraws
from stablenet.values import Count, Filled, NonNegative, Share, check_fields, require

GREY = (0.299, 0.587, 0.114)  # ITU-R BT.601


@cache
def choose_permutations(tiles: int, count: int) -> tuple[tuple[int, ...], ...]:
    """`count` permutations of the tiles beside the order itself, which comes first: (count + 1) of them.

    Each is one of those farthest, in places that differ, from the nearest already chosen; which of those is drawn
    with a fixed seed, as the puzzles are the same in every run.
    """
    every = np.array(list(itertools.permutations(range(tiles))), dtype=np.int8).T.copy()
    generator = np.random.default_rng(0)
    chosen = [0]  # itertools begins with the order itself
    nearest = np.full(every.shape[1], tiles, dtype=np.int8)
    for _ in range(count):
        nearest = np.minimum(nearest, (every != every[:, chosen[-1:]]).sum(0, dtype=np.int8))
        chosen.append(int(generator.choice(np.flatnonzero(nearest == nearest.max()))))
    return tuple(tuple(row) for row in every[:, chosen].T.tolist())


def shuffle_tiles(images: Tensor, permutation: Tensor, grid: int) -> Tensor:
    """Images (b, c, s, s) with place k of the grid × grid tiles showing tile permutation[k]; permutation (b, grid²).

    Pixels right of and below the last whole tile stay where they are.
    """
    batch, channels, side, _ = images.shape
    tile = side // grid
    inner = images[:, :, : grid * tile, : grid * tile]
    tiles = inner.reshape(batch, channels, grid, tile, grid, tile).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    moved = tiles.gather(1, permutation.view(batch, -1, 1, 1, 1).expand_as(tiles))
    moved = moved.unflatten(1, (grid, grid)).permute(0, 3, 1, 4, 2, 5).reshape(inner.shape)
    shuffled = images.clone()
    shuffled[:, :, : grid * tile, : grid * tile] = moved
    return shuffled


def grey_tiles(images: Tensor, grey: Tensor, grid: int) -> Tensor:
    """Images (b, 3, s, s) with the tiles chosen by grey (b, grid²) bool without colour."""
    side = images.shape[-1]
    tile = side // grid
    chosen = grey.view(-1, 1, grid, grid).repeat_interleave(tile, 2).repeat_interleave(tile, 3)
    rest = side - grid * tile
    red, green, blue = images.split(1, 1)
    plain = GREY[0] * red + GREY[1] * green + GREY[2] * blue
    return torch.where(functional.pad(chosen, (0, rest, 0, rest)), plain, images)


@dataclass(frozen=True, kw_only=True)
class JiGenSettings:
    """Defaults: the method's published code.

    weight: of the jigsaw's loss beside the classes'.   permutations: orders to distinguish, besides the original one.
    grid: tiles per side.   ordered: share of pictures left in order; the others get any of the orders, the right
    one included.   grey: probability that a tile loses its colours.
    """

    weight: NonNegative = 0.7
    permutations: Count = 30
    grid: Literal[2, 3] = 3
    ordered: Share = 0.9
    grey: Share = 0.1

    def __post_init__(self) -> None:
        check_fields(self)
        most = factorial(self.grid**2) - 1
        require(self.permutations <= most, "permutations", f"at most {most:,}", self.permutations)


class JiGen(Algorithm[JiGenSettings]):
    r"""min 1/n Σ CE(g(f(z_i)), y_i) + α·CE(h(f(z_i)), p_i): z_i is image i in the order p_i of its tiles, g the
    classifier, h a second linear one over the 31 orders.

    After Carlucci et al., Domain Generalization by Solving Jigsaw Puzzles, CVPR 2019, and its published code: one
    pass serves both losses, and shuffled pictures are classified too. Departures: the permutations are drawn anew, as
    far apart as can be, the right order among them; tiles are made grey after normalisation, which is exact where
    all channels have the same mean and deviation; a picture's side need not be a multiple of the grid: a margin of
    one or two pixels then stays in place.
    """

    title = "a second classifier predicts how a picture's tiles were shuffled"
    settings_type = JiGenSettings
    replayable = True
    orders: Tensor

    def __init__(self, network: Network, settings: JiGenSettings, context: Context) -> None:
        super().__init__(network, settings, context)
        network.tap([LAST])
        self.jigsaw = nn.Linear(network.width, settings.permutations + 1)
        self.draws = StepDraws(context.seed)
        self.register_buffer("orders", torch.tensor(choose_permutations(settings.grid**2, settings.permutations)))

    def loss(self, batch: Batch) -> StepOutput:
        images, order = self.make_puzzles(batch)
        logits, features = self.run_network(images)
        per_sample, accuracy = classify(logits, batch.y)
        guess = self.jigsaw(features[LAST])
        puzzle = functional.cross_entropy(guess.float(), order, reduction="none")
        solved = (guess.detach().argmax(1) == order).float().mean()
        diagnostics = {"accuracy": accuracy, "jigsaw_accuracy": solved}
        return StepOutput(per_sample + self.settings.weight * puzzle, None, diagnostics)

    def make_puzzles(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The batch's images in a drawn order of their tiles, and which (b,); 0 is the right one."""
        settings, images = self.settings, batch.x
        if images.shape[-1] < settings.grid:
            raise UserError(f"JiGen cuts images into {settings.grid} × {settings.grid} tiles: too many for their size")
        keep, which, *tiles = self.draws(batch.index, 2 + settings.grid**2).unbind(1)
        order = torch.where(keep < settings.ordered, 0, (which * len(self.orders)).long())
        if settings.ordered < 1:
            images = shuffle_tiles(images, self.orders[order], settings.grid)
        if settings.grey > 0:
            images = grey_tiles(images, torch.stack(tiles, 1) < settings.grey, settings.grid)
        return images, order


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
    and the mask m_i mutes what g's prediction of y_i relies on.

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
        diagnostics = {"accuracy": accuracy, "muted": muted}
        return StepOutput(per_sample.view(-1, len(batch.y)).mean(0), None, diagnostics)

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
