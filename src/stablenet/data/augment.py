"""Augmentation on the device: torchvision's v2 transforms with separate random parameters for each sample.

torchvision draws once per call, so a whole batch would share one crop and one colour change. Here the parameters of all
samples are drawn at once from their keys, and each transform is a batched tensor operation that gives for each sample
what `torchvision.transforms.v2.functional` gives for that image alone. On a GPU two Triton kernels do the same
(`stablenet.data.kernels`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Protocol

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as vision

from stablenet.data.kernels import augment_fused, resize_fused, runs_fused
from stablenet.data.transforms import Draws, apply_draws
from stablenet.randomness import draw_uniform
from stablenet.values import Between, Positive, Share, ShareAboveZero, check_fields, require

_CACHED = 8  # images of usual size whose intermediate values fit in the CPU caches; measured
_DRAWN = 65536  # samples per draw: about 300 bytes of intermediate values each
_TRIES = 10  # for a crop that fits, as in torchvision, before using the whole image


class Transform(Protocol):
    """Maps pixels (b, H, W, 3) uint8 and keys (b,) int64 to network input (b, 3, s, s) float32.

    Also available in two steps, so that a loader draws once per epoch: `draw`, then `apply` for each batch. On a GPU
    with Triton the result is in channels-last memory format.
    """

    def __call__(self, pixels: Tensor, key: Tensor) -> Tensor: ...

    def draw(self, key: Tensor, height: int, width: int) -> Tensor:
        """Random parameters of n samples with images of this size.   key: (n,) int64.   Returns (n, d) float32."""

    def apply(self, pixels: Tensor, draws: Tensor, rows: Tensor | None = None) -> Tensor:
        """Transform pixels (m, H, W, 3), or only those at rows (b,) int64, with draws (b, d), to (b, 3, s, s)."""


@dataclass(frozen=True, kw_only=True)
class AugmentSettings:
    """Augmentation strengths. Defaults are those of the authors' published code; the paper gives none."""

    scale: tuple[ShareAboveZero, ShareAboveZero] = (0.8, 1.0)  # area of the crop as a share of the image's
    ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3)  # aspect ratio of the crop, torchvision's default
    flip: Share = 0.5  # probability
    brightness: Share = 0.4
    contrast: Share = 0.4
    saturation: Share = 0.4
    hue: Annotated[float, Between(0, 0.5)] = 0.4  # turns of the colour circle
    grayscale: Share = 0.1  # probability

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.scale[0] <= self.scale[1], "scale", "two increasing numbers", self.scale)
        require(self.ratio[0] <= self.ratio[1], "ratio", "two increasing numbers", self.ratio)


@dataclass(frozen=True)
class Normalization:
    """Channel means and standard deviations that a backbone expects, for values in 0..1; ImageNet's by default."""

    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def __call__(self, images: Tensor) -> Tensor:
        """Standardize images (b, 3, s, s) in 0..1; the result is contiguous.

        Uses plain numbers per channel: tensors would have to be copied to the device.
        """
        channels = zip(images.unbind(1), self.mean, self.std, strict=True)
        return torch.stack([(channel - mean) / std for channel, mean, std in channels], 1)


class Resize:
    """The evaluation transform: the whole image at the backbone's resolution, nothing random."""

    def __init__(self, size: int, normalization: Normalization) -> None:
        self.size = size
        self.normalization = normalization

    def __call__(self, pixels: Tensor, key: Tensor) -> Tensor:
        return self.apply(pixels, self.draw(key, *pixels.shape[1:3]))

    def draw(self, key: Tensor, height: int, width: int) -> Tensor:
        return torch.empty(len(key), 0, device=key.device)

    def apply(self, pixels: Tensor, draws: Tensor, rows: Tensor | None = None) -> Tensor:
        if runs_fused(pixels, self.size):
            return resize_fused(pixels, rows, self.size, self.normalization.mean, self.normalization.std)
        pixels = pixels if rows is None else pixels[rows]
        return torch.cat([self._resize(part) for part in pixels.split(_chunk(pixels))])

    def _resize(self, pixels: Tensor) -> Tensor:
        images = vision.resize(pixels.permute(0, 3, 1, 2), [self.size, self.size], antialias=True)
        return self.normalization(images.float() / 255)


class Augment:
    """The training transform: crop, flip, colour jitter and greyscale, drawn separately for each sample."""

    def __init__(self, size: int, normalization: Normalization, settings: AugmentSettings | None = None) -> None:
        self.size = size
        self.normalization = normalization
        self.settings = settings or AugmentSettings()

    def __call__(self, pixels: Tensor, key: Tensor) -> Tensor:
        return self.apply(pixels, self.draw(key, *pixels.shape[1:3]))

    def draw(self, key: Tensor, height: int, width: int) -> Tensor:
        parts = key.split(_DRAWN)
        return torch.cat([draw_parameters(part, height, width, self.settings).pack() for part in parts])

    def apply(self, pixels: Tensor, draws: Tensor, rows: Tensor | None = None) -> Tensor:
        if runs_fused(pixels, self.size):
            return augment_fused(pixels, rows, draws, self.size, self.normalization.mean, self.normalization.std)
        pixels = pixels if rows is None else pixels[rows]
        chunk = _chunk(pixels)
        parts = zip(pixels.split(chunk), draws.split(chunk), strict=True)
        return torch.cat([self._augment(part, Draws.unpack(drawn)) for part, drawn in parts])

    def _augment(self, pixels: Tensor, draws: Draws) -> Tensor:
        return self.normalization(apply_draws(pixels, draws, self.size))


def _chunk(pixels: Tensor) -> int:
    """Samples to transform at a time: all on a GPU, on a CPU as many as fit in its caches."""
    return _CACHED if pixels.device.type == "cpu" else max(1, len(pixels))


def draw_parameters(key: Tensor, height: int, width: int, settings: AugmentSettings) -> Draws:
    """Draw for each key (b,) the parameters torchvision draws for one image of height × width."""
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
