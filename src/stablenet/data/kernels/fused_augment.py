"""Buffers and kernel launches of the fused transforms."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from stablenet.data.kernels import augment_programs
from stablenet.data.transforms import COLUMNS, Triple, count_taps

BLOCK = 512  # pixels of one program
FUSE = {"enable_fp_fusion": True}  # a·b + c with one rounding; the default differs between versions of Triton


def launch_augment(pixels: Tensor, rows: Tensor | None, draws: Tensor, size: int, mean: Triple, std: Triple) -> Tensor:
    """Augment.   pixels: (m, H, W, 3) uint8.   rows: (b,) int64.   draws: (b, 16).   Returns (b, 3, size, size)."""
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
        augment_programs.gray_program[(tiles, count)](*inputs, sums, height, width, **static, **FUSE)
        augment_programs.augment_program[(tiles, count)](
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
    """Resize.   pixels: (m, H, W, 3) uint8.   rows: (b,) int64.   Returns (b, 3, size, size)."""
    count = len(pixels) if rows is None else len(rows)
    out = _make_output(pixels, count, size)
    if not count:
        return out
    height, width = pixels.shape[1:3]
    with _on_device(pixels):
        augment_programs.resize_program[(-(-size * size // BLOCK), count)](
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
    """Contiguous inputs of the kernels; without rows, the second tensor is a placeholder that is not read."""
    pixels = pixels.contiguous()
    return pixels, pixels if rows is None else rows.contiguous()


def _make_output(pixels: Tensor, count: int, size: int) -> Tensor:
    return torch.empty((count, 3, size, size), device=pixels.device, memory_format=torch.channels_last)


def _on_device(pixels: Tensor) -> AbstractContextManager[object]:
    """Select the pixels' device: Triton launches on the current device, whatever the device of its arguments."""
    return torch.cuda.device(pixels.device) if pixels.is_cuda else nullcontext()
