"""The fused solve on CUDA: sizes, buffers and launches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl
from torch import Tensor

from stablenet.weighting.fourier import FourierFunctions
from stablenet.weighting.kernels import prepare_programs
from stablenet.weighting.kernels.solve_program import solve_program
from stablenet.weighting.problem import draw_functions
from stablenet.weighting.settings import WeightingSettings
from stablenet.weighting.solver import Solution, ess_spread_limit
from stablenet.weighting.statistic import centre_gram, label_gram_of

TILE = 32  # samples on each side of a tile of pairs
NEVER = 2**30
LARGEST = torch.finfo(torch.float32).max
TRITON_TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


@dataclass(frozen=True)
class Grid:
    """How a solve is spread over the device."""

    programs: int  # a power of two; each owns some features and some rows
    features: int  # of one program
    rows: int  # of one program, a power of two
    block_m: int  # features at once
    block_n: int  # all samples, rounded up to a power of two
    warps: int


def launch_solve(
    rows: Tensor,
    labels: Tensor | None,
    fixed: Tensor,
    size: int,
    settings: WeightingSettings,
    generator: torch.Generator,
) -> Solution:
    """rows: (n, m), the batch's `size` last.   labels: (n,) or (n, C).   fixed: (n − size,) weights."""
    u = fourier_rows_fused(rows, settings, generator)
    real = settings.working_dtype(u.device)
    counter = torch.empty(1, dtype=torch.int32, device=u.device)
    k, pairs = gram_fused(u, real, counter, with_pairs=settings.pairs != "labels")
    label_gram = product = k  # stands in for matrices that the compiled variant does not read
    if settings.pairs != "features":
        assert labels is not None
        label_gram = label_gram_of(labels, real)
        label_gram = centre_gram(label_gram) if settings.form == "covariance" else label_gram
        product = k * label_gram
    return run_steps(u, (pairs, k, label_gram, product), counter, fixed, size, settings)


def fourier_rows_fused(rows: Tensor, settings: WeightingSettings, generator: torch.Generator) -> Tensor:
    """`problem.fourier_rows` of standardised rows (n, m), centred where the form allows. Returns (m', q, n)."""
    n, width = rows.shape
    linear = settings.num_functions == 0
    if linear:
        functions = FourierFunctions(rows, rows)
        m, q = width, 1
    else:
        functions = draw_functions(width, settings, generator)
        m, q = functions.omega.shape
    omega = functions.omega if settings.bandwidth == 1 else functions.omega / float(settings.bandwidth)
    u = torch.empty(m, q, n, device=rows.device)
    block_n = power_of_two(n)
    block_m = max(1, 1024 // block_n)
    prepare_programs.fourier_program[(-(-m // block_m),)](
        rows,
        omega,
        functions.phase,
        rows if functions.columns is None else functions.columns,
        u,
        n,
        m,
        width,
        Q=q,
        STANDARD=settings.scaling == "standard",
        LINEAR=linear,
        CENTRE=settings.form == "covariance",
        SHARE=functions.columns is not None,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
    )
    return u


def gram_fused(u: Tensor, real: torch.dtype, counter: Tensor, with_pairs: bool) -> tuple[Tensor, Tensor]:
    """K = Σ_i K_i and, for feature pairs, M, in one pass over u (m, q, n). Both (n, n), of type `real`."""
    m, q, n = u.shape
    tiles = -(-n // TILE)
    splits = max(1, min(16, 1024 // tiles**2, m))
    partial = torch.empty(2, splits, n, n, device=u.device, dtype=real)
    k, pairs = torch.empty(2, n, n, device=u.device, dtype=real)
    prepare_programs.gram_program[(tiles, tiles, splits)](
        u, partial[0], partial[1], counter, n, m, -(-m // splits), Q=q, BLOCK=TILE, REAL=TRITON_TYPES[real]
    )
    prepare_programs.finish_program[(-(-n * n // 512),)](
        partial[0], partial[1], k, pairs, n * n, splits, PAIRS=with_pairs, BLOCK=512
    )
    return k, pairs


def run_steps(
    u: Tensor,
    matrices: tuple[Tensor, ...],
    counter: Tensor,
    fixed: Tensor,
    size: int,
    settings: WeightingSettings,
) -> Solution:
    """All inner steps in one launch.   u: (m, q, n).   matrices: M, K, L, K∘L, each (n, n).   counter: zero."""
    m, q, n = u.shape
    grid = plan_grid(n, m, q)
    real = matrices[0].dtype
    exchange = torch.empty((3 * grid.programs + 5) * grid.block_n + 2 * grid.programs, device=u.device, dtype=real)
    out = torch.empty(2 * size + settings.steps + 1 + 5, device=u.device)
    weights, logits, objective, facts = out.split([size, size, settings.steps + 1, 5])
    solve_program[(grid.programs,)](
        u,
        *matrices,
        fixed,
        exchange,
        counter,
        weights,
        logits,
        objective,
        facts,
        n,
        size,
        m,
        grid.features,
        settings.steps,
        NEVER if settings.decay_after is None else settings.decay_after,
        float(settings.learning_rate),
        float(settings.momentum),
        float(settings.penalty),
        min(ess_spread_limit(settings.min_ess, size), LARGEST),
        PAPER=settings.form == "paper",
        FEATURE_PAIRS=settings.pairs != "labels",
        LABEL_PAIRS=settings.pairs != "features",
        RELATIVE=settings.objective == "relative",
        RETREAT=settings.on_rise == "retreat",
        Q=q,
        P=grid.programs,
        ROWS=grid.rows,
        BLOCK_M=grid.block_m,
        BLOCK_N=grid.block_n,
        REAL=TRITON_TYPES[real],
        num_warps=grid.warps,
        launch_cooperative_grid=u.device.type == "cuda",
    )
    return Solution(weights, logits, facts[:2], objective, facts[2], facts[3], facts[4])


def plan_grid(n: int, m: int, q: int) -> Grid:
    """Enough programs to share the work, few enough to exchange sums cheaply and to run all at once."""
    block_n = power_of_two(n)
    wanted = max(1, n * m * q // 2048)  # numbers of u that one program reads in a pass
    count = min(64, power_of_two(wanted), power_of_two(m))
    rows = power_of_two(-(-n // count))
    block_m = max(1, min(8, 2048 // block_n))
    warps = min(16, max(4 if q == 1 else 8, block_n // 64))
    return Grid(count, -(-m // count), rows, block_m, block_n, warps)


def power_of_two(value: int) -> int:
    """The smallest power of two that is not below the value."""
    return 1 << max(0, value - 1).bit_length()
