"""The Triton programs of the transforms without a GPU: in Triton's interpreter, and through its compiler.

Triton reads its switch when the programs are imported, hence the processes of their own.
"""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from stablenet.data.kernels import runs_fused
from stablenet.data.transforms import count_taps

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton comes with torch on Linux")

INTERPRETED = """
import torch
from torch.nn import functional
from stablenet.data.augment import Augment, AugmentSettings, Normalization
from stablenet.randomness import combine
from stablenet.data.kernels.fused_augment import launch_augment, launch_resize

normalization = Normalization()
stats = normalization.mean, normalization.std
strided = torch.tensor([8, 0, 3, 3, 1, 2, 7, 5])[::2]
for height, width, size, rows in ((37, 29, 16, None), (25, 29, 28, strided), (23, 23, 23, torch.tensor([1, 0]))):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (9, height, width, 3), generator=generator, dtype=torch.uint8)
    pixels[0, :5], pixels[1], pixels[2] = 77, torch.tensor([255, 0, 0], dtype=torch.uint8), 0
    augment = Augment(size, normalization, AugmentSettings(scale=(0.1, 1.0), grayscale=0.3))
    draws = augment.draw(combine(9, 0, torch.arange(9)), height, width)
    assert draws[:, 14].unique().tolist() == [0, 1, 2, 3]
    draws = draws if rows is None else draws[: 2 * len(rows) : 2]
    found, expected = launch_augment(pixels, rows, draws, size, *stats), augment.apply(pixels, draws, rows)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)

    chosen = (pixels if rows is None else pixels[rows]).permute(0, 3, 1, 2).float()
    chosen = functional.interpolate(chosen, (size, size), mode="bilinear", antialias=True).round() / 255
    differs = (launch_resize(pixels, rows, size, *stats) - normalization(chosen)).abs()
    assert differs.max() < 1.01 / 255 / 0.224
    assert (differs > 1e-5).float().mean() < 1e-3  # a byte next to the border between two
    assert launch_augment(pixels[:0], None, draws[:0], size, *stats).shape == (0, 3, size, size)
    assert launch_resize(pixels, torch.arange(0), size, *stats).shape == (0, 3, size, size)
    print("agrees:", height, width, size)
"""

COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from stablenet.data.kernels import augment_programs as programs

kinds = {"pixels_ptr": "*u8", "rows_ptr": "*i64", "height": "i32", "width": "i32"}
values = {"PICK": True, "COLUMNS": 16, "SIZE": 224, "TAPS_Y": 3, "TAPS_X": 3, "BLOCK": 512, "TILES": 128}

def find_kind(name):
    return "constexpr" if name in values else kinds.get(name, "*fp32" if name.endswith("_ptr") else "fp32")

for program in (programs.gray_program, programs.augment_program, programs.resize_program):
    names = program.arg_names
    fixed = {(names.index(name),): value for name, value in values.items() if name in names}
    source = ASTSource(program, {name: find_kind(name) for name in names}, fixed)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": True})
    assert "cubin" in compiled.asm
    print("compiles:", names)
"""


def _run(script, **switches):
    env = {**os.environ, "OMP_NUM_THREADS": "1", **switches}
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@needs_triton
def test_interpreted_programs_equal_the_batched_operations():
    assert _run(INTERPRETED, TRITON_INTERPRET="1").count("agrees:") == 3


@needs_triton
def test_the_programs_compile_for_a_gpu_that_is_not_there(tmp_path):
    assert _run(COMPILED, TRITON_CACHE_DIR=str(tmp_path)).count("compiles:") == 3


@pytest.mark.parametrize(("source", "target", "taps"), [(224, 224, 2), (28, 64, 2), (227, 224, 3), (448, 224, 4)])
def test_the_taps_cover_the_triangle(source, target, taps):
    assert count_taps(source, target) == taps
    scale = max(1, source / target)
    for k in range(target):
        centre = source / target * (k + 0.5)
        assert sum(abs(place + 0.5 - centre) < scale - 1e-9 for place in range(source)) <= taps


def test_few_numbers_of_taps_occur():
    assert {count_taps(source, 224) for source in range(1, 897)} == {2, 3, 4, 8}


def test_the_processor_goes_the_batched_way():
    assert not runs_fused(torch.zeros(1, 8, 8, 3, dtype=torch.uint8), 8)
