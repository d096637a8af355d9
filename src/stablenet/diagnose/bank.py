"""Shallow features without a network: colours and local contrasts, pooled over the image and over its border.

Context (background, style, light) shows in such statistics, the object's shape hardly does; and what the border
tells about the label is told where the object mostly is not.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

BORDER = 8  # the border is one part in eight of the side, on each side
SCALES = (1, 2, 4)  # pixels between the two ends of a contrast

DESCRIPTION = (
    "hand-made: mean and spread of colours, colour differences and contrasts in four directions at three scales"
)


def extract_bank(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """pixels: (b, s, s, 3) uint8.   Returns features of the whole image and of its border, (b, 36) each."""
    maps = draw_maps(pixels.permute(0, 3, 1, 2).float() / 255)
    return pool(maps), pool_border(maps)


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


def pool(maps: Tensor) -> Tensor:
    """Mean and standard deviation of every channel over all positions.   maps: (b, c, h, w).   Returns (b, 2c)."""
    return _pool_positions(maps.flatten(2))


def pool_border(maps: Tensor) -> Tensor:
    """The same over the border alone."""
    return _pool_positions(maps[:, :, mask_border(*maps.shape[2:])])


def _pool_positions(values: Tensor) -> Tensor:
    return torch.cat([values.mean(2), values.std(2, correction=0)], 1)


def mask_border(height: int, width: int) -> Tensor:
    """(h, w) bool: the outermost eighth on each side, at least one position wide."""
    mask = torch.ones(height, width, dtype=torch.bool)
    top, left = max(1, height // BORDER), max(1, width // BORDER)
    mask[top : height - top, left : width - left] = False
    return mask
