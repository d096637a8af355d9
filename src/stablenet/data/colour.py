"""Colour changes for batches, with parameters of their own for every image; values lie in 0..1 throughout."""

from __future__ import annotations

import torch
from torch import Tensor

_LUMA = (0.2989, 0.587, 0.114)  # torchvision's weights of red, green and blue
CONTRAST, SATURATION, HUE = 1, 2, 3  # torchvision's numbers; brightness is 0


def jitter_colour(images: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue, each image in its own order.

    images: (b, 3, h, w).   factors: (b, 4), hue in turns.   order: (b, 4), permutations of 0..3.

    Hue is dear and the rest cheap, so it runs once for all: first what an image has before its hue, then hue,
    then what comes after. A step that is not due has the factor 1 and changes nothing.
    """
    hue_place = (order == HUE).int().argmax(1)
    for step in range(3):
        images = _blend_step(images, factors, order[:, step], hue_place > step)
    images = shift_hue(images, factors[:, HUE])
    for step in range(1, 4):
        images = _blend_step(images, factors, order[:, step], hue_place < step)
    return images


def to_grayscale(images: Tensor, chosen: Tensor) -> Tensor:
    """Replace the chosen images, (b,) bool, by their luminance in all three channels."""
    return torch.where(chosen.view(-1, 1, 1, 1), luminance(images), images)


def luminance(images: Tensor) -> Tensor:
    """(b, 3, h, w) to (b, 1, h, w)."""
    red, green, blue = images.unbind(1)
    return (_LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue).unsqueeze(1)


def _blend_step(images: Tensor, factors: Tensor, change: Tensor, due: Tensor) -> Tensor:
    """One of brightness, contrast, saturation, by the number in change (b,), where due (b,).

    All three move an image away from a reference: black, its mean grey, or its own luminance.
    """
    gray = luminance(images)
    change, due = change.view(-1, 1, 1, 1), due.view(-1, 1, 1, 1)
    reference = torch.where(change == SATURATION, gray, 0.0)
    reference = torch.where(change == CONTRAST, gray.mean((1, 2, 3), keepdim=True), reference)
    factor = factors.gather(1, change.view(-1, 1)).view(-1, 1, 1, 1)
    factor = torch.where(due, factor, 1.0)
    return torch.lerp(reference.expand_as(images), images, factor).clamp(0, 1)


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Turn every colour of an image around the colour circle.   images: (b, 3, h, w).   turns: (b,)."""
    red, green, blue = images.unbind(1)
    low = torch.minimum(torch.minimum(red, green), blue)  # plane by plane: reductions over three are slow
    high = torch.maximum(torch.maximum(red, green), blue)
    chroma = high - low
    safe = torch.where(chroma > 0, chroma, 1.0)
    from_red = (green - blue) / safe
    from_green = 2 + (blue - red) / safe
    from_blue = 4 + (red - green) / safe
    hue = torch.where(high == red, from_red, torch.where(high == green, from_green, from_blue))
    hue = hue + 6 * turns.view(-1, 1, 1)
    channels = []
    for offset in (5, 3, 1):  # HSV to RGB in closed form: value less chroma times a trapezoid of the hue
        sector = hue + offset
        sector = sector - 6 * torch.floor(sector / 6)
        channels.append(high - chroma * torch.minimum(sector, 4 - sector).clamp(0, 1))
    return torch.stack(channels, 1)
