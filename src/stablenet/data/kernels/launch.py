"""Buffers and launches of the fused transforms."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from stablenet.data.draws import COLUMNS
from stablenet.data.kernels import programs
from stablenet.data.kernels.taps import Triple, count_taps

BLOCK = 512  # pixels of one program
FUSE = {"enable_fp_fusion": True}  # a·b + c in one rounding; Triton's versions differ in what they do unasked


def launch_augment(pixels: Tensor, rows: Tensor | None, draws: Tensor, size: int, mean: Triple, std: Triple) -> Tensor:
    """pixels: (m, H, W, 3) uint8.   rows: (b,) int64.   draws: (b, 16).   Returns (b, 3, size, size)."""
    count, tiles = len(draws), -(-size * size // BLOCK)
    out = _make_output(pixels, count, size)
    if not count:
        return out
    inputs = (*_make_inputs(pixels, rows), draws.contiguous())
    height, width = pixels.shape[1:3]
    static = {
        "PICK": rows is not None,
        "COLUMNS": COLUMNS,
        "SIZE": size,
        "TAPS_Y": count_taps(height, size),
        "TAPS_X": count_taps(width, size),
        "BLOCK": BLOCK,
    }
    sums = torch.empty(count, tiles, device=pixels.device)
    with _on_device(pixels):
        programs.gray_program[(tiles, count)](*inputs, sums, height, width, **static, **FUSE)
        programs.augment_program[(tiles, count)](
            *inputs,
            sums,
            out,
            height,
            width,
            *map(float, mean + std),
            TILES=1 << (tiles - 1).bit_length(),
            **static,
            **FUSE,
        )
    return out


def launch_resize(pixels: Tensor, rows: Tensor | None, size: int, mean: Triple, std: Triple) -> Tensor:
    """pixels: (m, H, W, 3) uint8.   rows: (b,) int64.   Returns (b, 3, size, size)."""
    count = len(pixels) if rows is None else len(rows)
    out = _make_output(pixels, count, size)
    if not count:
        return out
    height, width = pixels.shape[1:3]
    with _on_device(pixels):
        programs.resize_program[(-(-size * size // BLOCK), count)](
            *_make_inputs(pixels, rows),
            out,
            height,
            width,
            *map(float, mean + std),
            PICK=rows is not None,
            SIZE=size,
            TAPS_Y=count_taps(height, size),
            TAPS_X=count_taps(width, size),
            BLOCK=BLOCK,
            **FUSE,
        )
    return out


def _make_inputs(pixels: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    """The programs read plain memory; where no rows are picked, they do not look at the second tensor."""
    pixels = pixels.contiguous()
    return pixels, pixels if rows is None else rows.contiguous()


def _make_output(pixels: Tensor, count: int, size: int) -> Tensor:
    return torch.empty((count, 3, size, size), device=pixels.device, memory_format=torch.channels_last)


def _on_device(pixels: Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device, wherever its arguments lie."""
    return torch.cuda.device(pixels.device) if pixels.is_cuda else nullcontext()
