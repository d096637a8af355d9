"""Composed images, in integer arithmetic: the same pixels on every machine.

In order: digits blended over background crops as in MNIST-M (pixel = |background − digit| in each channel), and
cut-outs with an alpha channel pasted over whole backgrounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

PLACES = 65536  # the position of a crop is stored as u, v in 0..65535, so that a manifest needs no image sizes


def crop_corners(place: NDArray[np.int64], extent: NDArray[np.int64], side: int) -> NDArray[np.int64]:
    """First pixel of a crop of `side` pixels: ⌊place/65536 · (extent − side + 1)⌋, in integer arithmetic.

    place: (n,) in 0..65535.   extent: (n,) pixels of the background along this axis, at least `side`.
    """
    return place * (extent - side + 1) // PLACES


def blend(
    digits: NDArray[np.uint8],
    backgrounds: Sequence[NDArray[np.uint8]],
    domain: NDArray[np.int64],
    u: NDArray[np.int64],
    v: NDArray[np.int64],
) -> NDArray[np.uint8]:
    """Blend digit k over a crop of the background image of its domain.

    digits: (n, s, s) uint8.   backgrounds: one (H, W, 3) uint8 image per domain, H, W ≥ s, sizes may differ.
    domain: (n,) the background.   u, v: (n,) in 0..65535, the crop's position across and down.
    Returns (n, s, s, 3) uint8.
    """
    side = digits.shape[-1]
    _check(side, backgrounds, domain, u, v)
    blended = np.empty((*digits.shape, 3), np.uint8)
    for number in np.unique(domain):
        members = np.flatnonzero(domain == number)
        crops = _crop(backgrounds[number], u[members], v[members], side)
        glyphs = digits[members][..., None]
        blended[members] = np.maximum(crops, glyphs) - np.minimum(crops, glyphs)  # |a − b| without leaving uint8
    return blended


def _crop(image: NDArray[np.uint8], u: NDArray[np.int64], v: NDArray[np.int64], side: int) -> NDArray[np.uint8]:
    """Crops (m, side, side, 3) of one image (H, W, 3)."""
    height, width = image.shape[:2]
    left = crop_corners(u, np.full_like(u, width), side)
    top = crop_corners(v, np.full_like(v, height), side)
    windows = np.lib.stride_tricks.sliding_window_view(image, (side, side), axis=(0, 1))  # a view: no copy
    crops: NDArray[np.uint8] = np.moveaxis(windows[top, left], 1, -1)
    return crops


def _check(
    side: int,
    backgrounds: Sequence[NDArray[np.uint8]],
    domain: NDArray[np.int64],
    u: NDArray[np.int64],
    v: NDArray[np.int64],
) -> None:
    if len(domain) and not 0 <= domain.min() <= domain.max() < len(backgrounds):
        raise ValueError(f"domains must be in 0..{len(backgrounds) - 1}")
    for name, place in (("u", u), ("v", v)):
        if len(place) and not 0 <= place.min() <= place.max() < PLACES:
            raise ValueError(f"{name} must be in 0..{PLACES - 1}")
    small = [k for k in np.unique(domain) if min(backgrounds[k].shape[:2]) < side]
    if small:
        raise ValueError(f"background {small[0]} is smaller than a digit of {side} pixels")


LIFT = 60  # thousandths of the side: the largest gap between a cut-out and the lower edge
OPAQUE = 128  # of 255: the alpha from which a pixel belongs to the foreground's mask


@dataclass(frozen=True)
class Placement:
    """background: its path.   scale: height of the cut-out in thousandths of the image's side.
    u, v: 0..65535, the place across the free width, and down to the lower edge.
    """

    background: str
    u: int
    v: int
    scale: int


@dataclass(frozen=True)
class Box:
    """The pixels of a square image that a cut-out covers."""

    top: int
    left: int
    height: int
    width: int

    @property
    def slices(self) -> tuple[slice, slice]:
        return slice(self.top, self.top + self.height), slice(self.left, self.left + self.width)


def place_box(size: tuple[int, int], placement: Placement, side: int) -> Box:
    """Where a cut-out of this size (height, width) is placed in an image of `side` pixels; it keeps its proportions.

    Its height is scale/1000 of the side; one that would be wider than the image is shrunk to its width.
    """
    height, width = size
    high = max(1, side * placement.scale // 1000)
    wide = max(1, (2 * high * width + height) // (2 * height))  # rounded
    if wide > side:
        wide, high = side, max(1, (2 * side * height + width) // (2 * width))
    left = placement.u * (side - wide + 1) // PLACES
    room = min(side - high, side * LIFT // 1000)
    top = side - high - room + placement.v * (room + 1) // PLACES
    return Box(top, left, high, wide)


def paste_cutout(
    cutout: NDArray[np.uint8], background: NDArray[np.uint8], placement: Placement, side: int
) -> NDArray[np.uint8]:
    """The cut-out over the background: (α·foreground + (255 − α)·background) / 255, rounded, in each channel.

    cutout: (h, w, 4) uint8, alpha last, not premultiplied.   background: (H, W, 3) uint8; its largest central square
    is resized to the image.   Returns (side, side, 3) uint8.
    """
    image = fit_square(background, side)
    box = place_box((cutout.shape[0], cutout.shape[1]), placement, side)
    small = _resize(cutout, box.height, box.width).astype(np.uint16)
    alpha, below = small[..., 3:], image[box.slices].astype(np.uint16)
    image[box.slices] = (alpha * small[..., :3] + (255 - alpha) * below + 127) // 255  # at most 65,152: fits 16 bits
    return image


def mask_cutout(cutout: NDArray[np.uint8], placement: Placement, side: int) -> NDArray[np.bool_]:
    """The pixels (side, side) of the composed image that show the cut-out (h, w, 4) at least half opaque."""
    mask = np.zeros((side, side), bool)
    box = place_box((cutout.shape[0], cutout.shape[1]), placement, side)
    mask[box.slices] = _resize(cutout, box.height, box.width)[..., 3] >= OPAQUE
    return mask


def fit_square(image: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """The largest central square of an image (H, W, 3), resized to (side, side, 3); a copy."""
    height, width = image.shape[:2]
    edge = min(height, width)
    top, left = (height - edge) // 2, (width - edge) // 2
    return _resize(image[top : top + edge, left : left + edge], side, side).copy()


def _resize(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Bilinear with antialiasing, in Pillow's fixed-point arithmetic; alpha is premultiplied meanwhile."""
    if image.shape[:2] == (height, width):
        return image
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))
