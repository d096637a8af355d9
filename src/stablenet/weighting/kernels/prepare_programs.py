"""The Triton programs that prepare a fused solve: Fourier features, K and M. `fused_solve.py` calls them."""

from __future__ import annotations

import triton
import triton.language as tl

TINY = tl.constexpr(1.1754944e-38)  # the smallest normal float32; below it nothing can be divided by
EPSILON = tl.constexpr(1.1920929e-07)  # float32's


@triton.jit
def fourier_program(
    z_ptr,
    omega_ptr,
    phase_ptr,
    columns_ptr,
    u_ptr,
    n,
    m,
    width,
    Q: tl.constexpr,
    STANDARD: tl.constexpr,
    LINEAR: tl.constexpr,
    CENTRE: tl.constexpr,
    SHARE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """u (m, q, n) from z (n, width): standardise, √2·cos(ωz + φ), centre. One program for BLOCK_M features."""
    feature = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row = tl.arange(0, BLOCK_N)
    inside = (feature < m)[:, None] & (row < n)[None, :]
    column = tl.load(columns_ptr + feature, mask=feature < m, other=0) if SHARE else feature
    z = tl.load(z_ptr + row[None, :] * width + column[:, None], mask=inside, other=0.0)
    keep = tl.full([BLOCK_M], 1.0, tl.float32)
    if STANDARD:
        peak = tl.maximum(tl.max(tl.abs(z), 1), TINY)
        z = z / peak[:, None]
        z = tl.where(inside, z - (tl.sum(z, 1) / n)[:, None], 0.0)
        spread = tl.sqrt(tl.sum(z * z, 1) / n)
        constant = spread <= 8 * EPSILON
        keep = tl.where(constant, 0.0, 1.0)
        z = z / tl.where(constant, 1.0, spread)[:, None]
    for a in tl.static_range(Q):
        if LINEAR:
            u = z
        else:
            at = feature * Q + a
            omega = tl.load(omega_ptr + at, mask=feature < m, other=0.0)
            phase = tl.load(phase_ptr + at, mask=feature < m, other=0.0)
            u = 1.4142135623730951 * tl.cos(z * omega[:, None] + phase[:, None])
        u = tl.where(inside, u * keep[:, None], 0.0)
        if CENTRE:
            u = tl.where(inside, u - (tl.sum(u, 1) / n)[:, None], 0.0)
        tl.store(u_ptr + (feature[:, None] * Q + a) * n + row[None, :], u, mask=inside)


@triton.jit
def gram_program(
    u_ptr,
    k_ptr,
    squares_ptr,
    counter_ptr,
    n,
    m,
    features_each,
    Q: tl.constexpr,
    BLOCK: tl.constexpr,
    REAL: tl.constexpr,
):
    """Σ_i K_i and Σ_i K_i∘K_i over one share of the features, for one tile of sample pairs.

    Writes the partial sums (splits, n, n); u: (m, q, n). Sets the counter of the solve's barrier to zero.
    """
    left = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    right = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    split = tl.program_id(2)
    if (tl.program_id(0) + tl.program_id(1) + split) == 0:
        tl.store(counter_ptr, 0)
    k = tl.zeros([BLOCK, BLOCK], REAL)
    squares = tl.zeros([BLOCK, BLOCK], REAL)
    first = split * features_each
    for feature in range(first, tl.minimum(first + features_each, m)):
        k_i = tl.zeros([BLOCK, BLOCK], REAL)
        for a in tl.static_range(Q):
            base = u_ptr + (feature * Q + a) * n
            u_left = tl.load(base + left, mask=left < n, other=0.0).to(REAL)
            u_right = tl.load(base + right, mask=right < n, other=0.0).to(REAL)
            k_i += u_left[:, None] * u_right[None, :]
        k += k_i
        squares += k_i * k_i
    inside = (left < n)[:, None] & (right < n)[None, :]
    at = split * n * n + left[:, None] * n + right[None, :]
    tl.store(k_ptr + at, k, mask=inside)
    tl.store(squares_ptr + at, squares, mask=inside)


@triton.jit
def finish_program(k_ptr, squares_ptr, k_out_ptr, pairs_ptr, size, splits, PAIRS: tl.constexpr, BLOCK: tl.constexpr):
    """K, summed over the splits, and M = K∘K − Σ_i K_i∘K_i, entry by entry of the n² = size."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    k = tl.load(k_ptr + at, mask=inside, other=0.0)
    for split in range(1, splits):
        k += tl.load(k_ptr + split * size + at, mask=inside, other=0.0)
    tl.store(k_out_ptr + at, k, mask=inside)
    if PAIRS:
        squares = tl.load(squares_ptr + at, mask=inside, other=0.0)
        for split in range(1, splits):
            squares += tl.load(squares_ptr + split * size + at, mask=inside, other=0.0)
        tl.store(pairs_ptr + at, k * k - squares, mask=inside)
