"""The transforms on CUDA: two launches a batch for the augmentation, one for resizing, whatever the batch.

This file decides when they are used. In reading order: `fused_augment` (buffers and launches) and `augment_programs`
(the Triton programs).
"""

from __future__ import annotations

from functools import cache

from torch import Tensor

from stablenet.data.transforms import Triple, count_taps
from stablenet.weighting.kernels import triton_works

MOST_TAPS = 8  # source pixels per output pixel along one axis; beyond, matrix products are faster


def runs_fused(pixels: Tensor, size: int) -> bool:
    """Whether images (m, H, W, 3) are resized by Triton kernels: on CUDA, down to a quarter of their size at most."""
    source = max(pixels.shape[1:3])
    return pixels.device.type == "cuda" and count_taps(source, size) <= MOST_TAPS and _has_triton()


@cache
def _has_triton() -> bool:
    return triton_works()


def augment_fused(pixels: Tensor, rows: Tensor | None, draws: Tensor, size: int, mean: Triple, std: Triple) -> Tensor:
    """`transforms.apply_draws` with standardization.   pixels: (m, H, W, 3) uint8.   rows: (b,).   draws: (b, 16).

    Returns (b, 3, size, size), channels last.
    """
    from stablenet.data.kernels.fused_augment import launch_augment

    return launch_augment(pixels, rows, draws, size, mean, std)


def resize_fused(pixels: Tensor, rows: Tensor | None, size: int, mean: Triple, std: Triple) -> Tensor:
    """Resize whole images, round to bytes and standardize; shapes as in `augment_fused`."""
    from stablenet.data.kernels.fused_augment import launch_resize

    return launch_resize(pixels, rows, size, mean, std)
