"""The transforms on CUDA: two launches a batch for the augmentation, one for resizing, whatever the batch."""

from __future__ import annotations

from functools import cache

from torch import Tensor

from stablenet.data.kernels.taps import Triple, count_taps
from stablenet.weighting.kernels import triton_works

MOST_TAPS = 8  # source pixels on one axis that a pixel is made of; beyond, products of matrices are quicker


def runs_fused(pixels: Tensor, size: int) -> bool:
    """Whether images (m, H, W, 3) become size × size in Triton programs: on CUDA, shrunk to a quarter at most."""
    source = max(pixels.shape[1:3])
    return pixels.device.type == "cuda" and count_taps(source, size) <= MOST_TAPS and _has_triton()


@cache
def _has_triton() -> bool:
    return triton_works()


def augment_fused(pixels: Tensor, rows: Tensor | None, draws: Tensor, size: int, mean: Triple, std: Triple) -> Tensor:
    """`crop.apply_draws`, standardized.   pixels: (m, H, W, 3) uint8.   rows: (b,).   draws: (b, 16).

    Returns (b, 3, size, size), channels last.
    """
    from stablenet.data.kernels.launch import launch_augment

    return launch_augment(pixels, rows, draws, size, mean, std)


def resize_fused(pixels: Tensor, rows: Tensor | None, size: int, mean: Triple, std: Triple) -> Tensor:
    """Whole images, their bytes resized and rounded, standardized; shapes as in `augment_fused`."""
    from stablenet.data.kernels.launch import launch_resize

    return launch_resize(pixels, rows, size, mean, std)
