"""Augmentation on the device: torchvision's v2 transforms, with a draw for every sample of a batch.

torchvision draws once per call, so that a batch would share one crop and one tint. Here the parameters of all
samples are drawn at once from their keys, and each transform is a batched tensor operation that gives for every
sample what `torchvision.transforms.v2.functional` gives for that image alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as vision

from stablenet.data.colour import jitter_colour, to_grayscale
from stablenet.data.counter import draw_uniform
from stablenet.errors import UserError

_CACHED = 8  # images of usual size whose intermediate values fit a processor's caches; measured
_TRIES = 10  # for a crop that fits, as torchvision does, before the whole image is taken


class Transform(Protocol):
    """Pixels (b, H, W, 3) uint8 and keys (b,) int64 to network input (b, 3, s, s) float32."""

    def __call__(self, pixels: Tensor, key: Tensor) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class AugmentSettings:
    """Defaults: the authors' published code; the paper gives none."""

    scale: tuple[float, float] = (0.8, 1.0)  # share of the image's area in the crop
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width over height of the crop, torchvision's default
    flip: float = 0.5  # probability
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.4  # turns of the colour circle
    grayscale: float = 0.1  # probability

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise UserError(f"augment.scale must rise within 0..1, got {self.scale}")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise UserError(f"augment.ratio must rise above 0, got {self.ratio}")
        for name in ("flip", "grayscale", "brightness", "contrast", "saturation"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"augment.{name} must lie in 0..1, got {getattr(self, name)}")
        if not 0 <= self.hue <= 0.5:
            raise UserError(f"augment.hue must lie in 0..0.5, got {self.hue}")


@dataclass(frozen=True)
class Draws:
    """What was drawn for b samples.

    top, left, height, width: (b,) int64, the crop in pixels.   flip, gray: (b,) bool.
    factors: (b, 4) brightness, contrast, saturation and hue.   order: (b, 4) in which they are applied.
    """

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    flip: Tensor
    gray: Tensor
    factors: Tensor
    order: Tensor


@dataclass(frozen=True)
class Normalization:
    """Channel means and deviations a backbone expects of values in 0..1; ImageNet's by default."""

    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def __call__(self, images: Tensor) -> Tensor:
        """(b, 3, s, s) in 0..1 to the same, standardized and contiguous.

        Plain numbers, channel by channel: tensors of them would have to be copied to the device.
        """
        channels = zip(images.unbind(1), self.mean, self.std, strict=True)
        return torch.stack([(channel - mean) / std for channel, mean, std in channels], 1)


class Resize:
    """The transform of evaluation: the whole image at the backbone's resolution, nothing random."""

    def __init__(self, size: int, normalization: Normalization) -> None:
        self.size = size
        self.normalization = normalization

    def __call__(self, pixels: Tensor, key: Tensor) -> Tensor:
        return torch.cat([self._resize(part) for part in pixels.split(_chunk(pixels))])

    def _resize(self, pixels: Tensor) -> Tensor:
        images = vision.resize(pixels.permute(0, 3, 1, 2), [self.size, self.size], antialias=True)
        return self.normalization(images.float() / 255)


class Augment:
    """The transform of training: crop, flip, colours, grey; every sample has its own draw.

    compiled: fuse the operations with torch.compile. Worth its minute on a GPU, where single operations spend
        their time on memory; each batch shape compiles anew, so drop a short last batch.
    """

    def __init__(
        self,
        size: int,
        normalization: Normalization,
        settings: AugmentSettings | None = None,
        *,
        compiled: bool = False,
    ) -> None:
        self.size = size
        self.normalization = normalization
        self.settings = settings or AugmentSettings()
        self._run = torch.compile(self._augment, dynamic=False) if compiled else self._augment

    def __call__(self, pixels: Tensor, key: Tensor) -> Tensor:
        chunk = _chunk(pixels)
        parts = zip(pixels.split(chunk), key.split(chunk), strict=True)
        return torch.cat([self._run(part, keys) for part, keys in parts])

    def _augment(self, pixels: Tensor, key: Tensor) -> Tensor:
        draws = draw_parameters(key, pixels.shape[1], pixels.shape[2], self.settings)
        return self.normalization(apply_parameters(pixels, draws, self.size))


def _chunk(pixels: Tensor) -> int:
    """Samples to transform at a time: all on a GPU; on a processor as many as its caches hold."""
    return _CACHED if pixels.device.type == "cpu" else max(1, len(pixels))


def draw_parameters(key: Tensor, height: int, width: int, settings: AugmentSettings) -> Draws:
    """Draw for every key (b,) what torchvision draws for one image of height × width."""
    uniform = draw_uniform(key, 2 * _TRIES + 12)
    crop, rest = uniform[:, : 2 * _TRIES + 2], uniform[:, 2 * _TRIES + 2 :]
    box = _draw_crop(crop, height, width, settings)
    spread = (settings.brightness, settings.contrast, settings.saturation, settings.hue)
    shifts = [bound * (2 * rest[:, 2 + k] - 1) for k, bound in enumerate(spread)]
    return Draws(
        *box,
        flip=rest[:, 0] < settings.flip,
        gray=rest[:, 1] < settings.grayscale,
        factors=torch.stack([1 + shifts[0], 1 + shifts[1], 1 + shifts[2], shifts[3]], 1),
        order=rest[:, 6:10].argsort(1),
    )


def _draw_crop(
    uniform: Tensor, height: int, width: int, settings: AugmentSettings
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Boxes (top, left, height, width), each (b,), from uniform (b, 22): the first of ten tries that fits."""
    low, high = settings.scale
    area = height * width * (low + (high - low) * uniform[:, :_TRIES])
    low, high = (math.log(bound) for bound in settings.ratio)
    ratio = torch.exp(low + (high - low) * uniform[:, _TRIES : 2 * _TRIES])
    widths, heights = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
    first = fits.int().argmax(1, keepdim=True)
    whole_height, whole_width = _whole_crop(height, width, settings.ratio)
    found = fits.any(1)
    box_height = torch.where(found, heights.gather(1, first).squeeze(1), whole_height)
    box_width = torch.where(found, widths.gather(1, first).squeeze(1), whole_width)
    place = uniform[:, 2 * _TRIES :]
    top = torch.where(found, place[:, 0] * (height - box_height + 1), (height - box_height) / 2)
    left = torch.where(found, place[:, 1] * (width - box_width + 1), (width - box_width) / 2)
    return top.long(), left.long(), box_height.long(), box_width.long()


def _whole_crop(height: int, width: int, ratio: tuple[float, float]) -> tuple[float, float]:
    """The largest box within the allowed ratios, for images in which no try fits."""
    if width / height < ratio[0]:
        return float(round(width / ratio[0])), float(width)
    if width / height > ratio[1]:
        return float(height), float(round(height * ratio[1]))
    return float(height), float(width)


def apply_parameters(pixels: Tensor, draws: Draws, size: int) -> Tensor:
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
