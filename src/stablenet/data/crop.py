"""Crops, resized and perhaps flipped, of a whole batch at once, and with them the whole augmentation."""

from __future__ import annotations

import torch
from torch import Tensor

from stablenet.data.colour import jitter_colour, to_grayscale
from stablenet.data.draws import Draws


def apply_draws(pixels: Tensor, draws: Draws, size: int) -> Tensor:
    """Pixels (b, H, W, 3) uint8 to augmented images (b, 3, s, s) in 0..1."""
    images = crop_resize(pixels, draws, size)
    images = jitter_colour(images, draws.factors, draws.order)
    return to_grayscale(images, draws.gray)


def crop_resize(pixels: Tensor, draws: Draws, size: int) -> Tensor:
    """Each sample's box, resized to size × size and perhaps flipped: (b, H, W, 3) uint8 to (b, 3, s, s) in 0..1.

    A bilinear, antialiased resize is linear and separable: two batched matrix products, into which crop and
    flip go for nothing.
    """
    count, height, width, _ = pixels.shape
    rows = resize_matrix(draws.top, draws.height, height, size)
    columns = resize_matrix(draws.left, draws.width, width, size)
    columns = torch.where(draws.flip.view(-1, 1, 1), columns.flip(1), columns)
    images = pixels.permute(0, 1, 3, 2).float().reshape(count, height, 3 * width)
    images = torch.bmm(rows, images).view(count, size * 3, width)
    images = torch.bmm(images, columns.transpose(1, 2)).view(count, size, 3, size)
    return images.transpose(1, 2) / 255


def resize_matrix(start: Tensor, extent: Tensor, source: int, target: int) -> Tensor:
    """Weights (b, target, source) that resize `extent` pixels from `start` on to `target` pixels.

    A triangle around each target pixel's centre, as wide as the larger of the two pixels, cut off at the
    border of the crop and normalized: torch's bilinear interpolation with antialiasing.
    """
    extent, start = extent.float().view(-1, 1, 1), start.float().view(-1, 1, 1)
    scale = extent / target
    centre = scale * (torch.arange(target, device=start.device).view(1, -1, 1) + 0.5)
    place = torch.arange(source, device=start.device).view(1, 1, -1) - start
    weight = (1 - (place + 0.5 - centre).abs() / scale.clamp_min(1)).clamp_min(0)
    weight = torch.where((place >= 0) & (place < extent), weight, 0.0)
    return weight / weight.sum(2, keepdim=True)
