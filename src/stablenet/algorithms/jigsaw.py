"""Pictures cut into tiles: permutations far apart, tiles put in another order, tiles made grey."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

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
