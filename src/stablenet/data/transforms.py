"""Batched augmentation with separate parameters for each image: the drawn parameters, colour changes, crops.

Pixel values are in 0..1 throughout.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

Triple = tuple[float, float, float]  # one number per channel
COLUMNS = 16  # of packed draws: 15, and one for padding, which aligns the rows to 64 bytes


@dataclass(frozen=True)
class Draws:
    """The parameters drawn for b samples.

    top, left, height, width: (b,) int64, the crop in pixels.   flip, gray: (b,) bool.
    factors: (b, 4) brightness, contrast, saturation and hue.   order: (b, 4), the order in which they are applied.
    """

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    flip: Tensor
    gray: Tensor
    factors: Tensor
    order: Tensor

    def pack(self) -> Tensor:
        """Pack into (b, 16) float32: all fields in order, the number of colour changes before the contrast, padding."""
        before = (self.order == CONTRAST).int().argmax(1)
        scalars = (self.top, self.left, self.height, self.width, self.flip, self.gray)
        columns = (*scalars, *self.factors.unbind(1), *self.order.unbind(1), before, torch.zeros_like(before))
        return torch.stack([column.float() for column in columns], 1)

    @classmethod
    def unpack(cls, rows: Tensor) -> Draws:
        """Unpack rows (b, 16): all integers among them are exact in float32."""
        top, left, height, width = rows[:, :4].long().unbind(1)
        flip, gray = (rows[:, 4:6] > 0).unbind(1)
        return cls(top, left, height, width, flip, gray, rows[:, 6:10], rows[:, 10:14].long())


_LUMA = (0.2989, 0.587, 0.114)  # torchvision's weights of red, green and blue
CONTRAST, SATURATION, HUE = 1, 2, 3  # torchvision's numbers; brightness is 0


def jitter_colour(images: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue, in a separate order for each image.

    images: (b, 3, h, w).   factors: (b, 4), hue in turns.   order: (b, 4), permutations of 0..3.

    Hue is expensive and the others are cheap, so it runs once: first the changes that precede hue, then hue, then those
    that follow. A step that is not due has the factor 1 and changes nothing.
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
    """Change brightness, contrast or saturation, by the number in change (b,), where due (b,).

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
    """Rotate the hue.   images: (b, 3, h, w).   turns: (b,), fractions of the colour circle."""
    red, green, blue = images.unbind(1)
    low = torch.minimum(torch.minimum(red, green), blue)  # by channel: reductions over three values are slow
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


def apply_draws(pixels: Tensor, draws: Draws, size: int) -> Tensor:
    """Pixels (b, H, W, 3) uint8 to augmented images (b, 3, s, s) in 0..1."""
    images = crop_resize(pixels, draws, size)
    images = jitter_colour(images, draws.factors, draws.order)
    return to_grayscale(images, draws.gray)


def crop_resize(pixels: Tensor, draws: Draws, size: int) -> Tensor:
    """Crop, resize to size × size and flip each sample: (b, H, W, 3) uint8 to (b, 3, s, s) in 0..1.

    A bilinear, antialiased resize is linear and separable: two batched matrix products, which include crop and flip at
    no cost.
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

    A triangle around the centre of each target pixel, as wide as the larger of the two pixels, truncated at the border
    of the crop and normalized: torch's bilinear interpolation with antialiasing.
    """
    extent, start = extent.float().view(-1, 1, 1), start.float().view(-1, 1, 1)
    scale = extent / target
    centre = scale * (torch.arange(target, device=start.device).view(1, -1, 1) + 0.5)
    place = torch.arange(source, device=start.device).view(1, 1, -1) - start
    weight = (1 - (place + 0.5 - centre).abs() / scale.clamp_min(1)).clamp_min(0)
    weight = torch.where((place >= 0) & (place < extent), weight, 0.0)
    return weight / weight.sum(2, keepdim=True)


def count_taps(source: int, target: int) -> int:
    """Number of `source` pixels that contribute to one of `target`, rounded up so that few kernels are compiled.

    The triangle around a pixel's centre extends by the larger of the two pixels to both sides.
    """
    taps = -(-2 * max(source, target) // target)
    return taps if taps <= 4 else 1 << (taps - 1).bit_length()
