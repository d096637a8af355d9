"""Hand-made features of an image, of its border and of its middle: colours and textures, pooled; no network sees them.

What the border predicts of the label is predicted where the object mostly is not: see `stablenet.weighting.evidence`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from stablenet.errors import UserError
from stablenet.weighting import distributed
from stablenet.weighting.inputs import pool_maps

BORDER = 8  # the border is one part in eight of the side, on each side
MIDDLE = 4  # the middle leaves one part in four of the side, on each side
SCALES = (1, 2, 4)  # pixels between the two ends of a contrast
SIDE = 64  # statistics of colour and texture change little above this
WIDTH = 36  # features of an image

DESCRIPTION = (
    "hand-made: mean and spread of colours, colour differences and contrasts in four directions at three scales"
)


class Described(NamedTuple):
    """Features (b, 36) of whole images, of their borders and of their middles."""

    whole: Tensor
    border: Tensor
    middle: Tensor


def extract_bank(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """pixels: (b, h, w, 3) uint8.   Returns features of the whole image and of its border, (b, 36) each."""
    found = describe_pixels(pixels)
    return found.whole, found.border


def describe_pixels(pixels: Tensor) -> Described:
    """pixels: (b, h, w, 3) uint8, as they are stored."""
    return describe_images(pixels.permute(0, 3, 1, 2).float() / 255)


def describe_images(images: Tensor) -> Described:
    """images: (b, 3, h, w) in 0..1, of any size."""
    maps = draw_maps(shrink(images))
    return Described(pool_maps(maps), pool_border(maps), pool_maps(maps[:, :, mask_middle(*maps.shape[2:])]))


def shrink(images: Tensor) -> Tensor:
    """Images (b, 3, h, w) with sides of at most `SIDE` pixels, as `stablenet.data.decode` resizes them."""
    size = [min(side, SIDE) for side in images.shape[2:]]
    if size == list(images.shape[2:]):
        return images
    return interpolate(images, size, mode="bilinear", antialias=True)


class UnitRange:
    """Images of any normalization to 0..1, for loops that hand over nothing else.

    What was subtracted from a channel and what it was divided by is taken from the first batch: somewhere in it every
    channel is black, and somewhere full.
    """

    def __init__(self, shared: bool = False) -> None:
        """shared: whether the first batch is spread over all processes."""
        self._shared = shared
        self._low: Tensor | None = None
        self._span: Tensor | None = None

    def __call__(self, images: Tensor) -> Tensor:
        """images: (b, c, h, w), c of 1 or 3 or more, of which the first three count.   Returns (b, 3, h, w)."""
        if images.ndim != 4:
            raise UserError(f"images must be (batch, channels, height, width), got {tuple(images.shape)}")
        images = images.detach().float()
        images = images[:, :3] if images.shape[1] >= 3 else images[:, :1].expand(-1, 3, -1, -1)
        if self._low is None or self._span is None:
            least = images.new_full((1, *images.shape[1:]), -torch.inf)  # a process may have none of a short batch
            ends = torch.stack([torch.cat([part, least]).amax((0, 2, 3), keepdim=True) for part in (-images, images)])
            if self._shared:
                distributed.max_in_place(ends)
            self._low = -ends[0]
            self._span = (ends[1] - self._low).clamp_min(torch.finfo(torch.float32).tiny)
        return (images - self._low) / self._span


def draw_maps(images: Tensor) -> Tensor:
    """Images (b, 3, s, s) in 0..1 to maps (b, 18, s, s): colours, their differences, absolute contrasts."""
    red, green, blue = images.unbind(1)
    differences = torch.stack([red - green, (red + green) / 2 - blue, images.amax(1) - images.amin(1)], 1)
    grey = images.mean(1, keepdim=True)
    contrasts = [contrast for distance in SCALES for contrast in _draw_contrasts(grey, distance)]
    return torch.cat([images, differences, *contrasts], 1)


def _draw_contrasts(grey: Tensor, distance: int) -> list[Tensor]:
    """|difference| across, down and along both diagonals, (b, 1, s, s) each; zero where the image ends."""
    across = pad(grey[..., distance:] - grey[..., :-distance], (0, distance))
    down = pad(grey[..., distance:, :] - grey[..., :-distance, :], (0, 0, 0, distance))
    half = 0.5**0.5
    return [across.abs(), down.abs(), half * (across + down).abs(), half * (across - down).abs()]


def pool_border(maps: Tensor) -> Tensor:
    """As `pool_maps`, over the outermost eighth on each side, at least one position.   maps: (b, c, h, w)."""
    height, width = maps.shape[2:]
    top, left = max(1, height // BORDER), max(1, width // BORDER)
    if height <= 2 * top or width <= 2 * left:
        return pool_maps(maps)  # all of it is border
    between = maps[:, :, top : height - top]
    strips = (maps[:, :, :top], maps[:, :, height - top :], between[..., :left], between[..., width - left :])
    return pool_maps(torch.cat([strip.flatten(2) for strip in strips], 2))


def mask_middle(height: int, width: int) -> Tensor:
    """(h, w) bool: the middle half of each side."""
    mask = torch.zeros(height, width, dtype=torch.bool)
    top, left = height // MIDDLE, width // MIDDLE
    mask[top : height - top, left : width - left] = True
    return mask
