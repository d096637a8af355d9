"""JiGen: the network also learns in which order the tiles of a picture were put.

In order: permutations and tiles, then the method.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache
from math import factorial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from stablenet.algorithms.algorithm import Algorithm, Context, StepOutput, classify
from stablenet.data.loader import Batch
from stablenet.errors import UserError
from stablenet.models import Network
from stablenet.models.taps import LAST
from stablenet.randomness import StepDraws
from stablenet.values import Count, NonNegative, Share, check_fields, require

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

    weight: of the jigsaw's loss beside the classes'.   permutations: orders to tell apart, beside the right one.
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
        told = {"accuracy": accuracy, "jigsaw_accuracy": solved}
        return StepOutput(per_sample + self.settings.weight * puzzle, None, told)

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
