"""Digits blended over background crops, as in MNIST-M: pixel = |background − digit| in each channel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
