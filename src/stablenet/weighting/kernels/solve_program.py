"""The Triton program of a fused solve: all inner steps in one launch. Its formulas are in `statistic.py`."""

from __future__ import annotations

import triton
import triton.language as tl

from stablenet.weighting.kernels.prepare_programs import TINY


@triton.jit
def wait_for_all(counter_ptr, target):
    """A barrier over all programs of the launch (they run at the same time: the launch is cooperative)."""
    tl.debug_barrier()
    tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu")
    while tl.load(counter_ptr, volatile=True) < target:  # polling by loads spares the counter a storm of atomics
        pass
    tl.atomic_add(counter_ptr, 0, sem="acquire", scope="gpu")
    tl.debug_barrier()


@triton.jit
def multiply_rows(matrix_ptr, x, rows, n, BLOCK_N: tl.constexpr):
    """(matrix @ x)[rows] of an (n, n) matrix.   x: BLOCK_N."""
    col = tl.arange(0, BLOCK_N)
    tile = tl.load(
        matrix_ptr + rows[:, None] * n + col[None, :],
        mask=(rows < n)[:, None] & (col < n)[None, :],
        other=0.0,
    )
    return tl.sum(tile * x[None, :], 1)


@triton.jit
def sum_partials(ptr, n, stride, P: tl.constexpr, BLOCK_N: tl.constexpr):
    """The sum over programs of their vectors (P, n), in a fixed order. Read past the L1 cache, which is not shared."""
    program, col = tl.arange(0, P), tl.arange(0, BLOCK_N)
    tile = tl.load(
        ptr + program[:, None] * stride + col[None, :],
        mask=(col < n)[None, :] & (program >= 0)[:, None],
        other=0.0,
        cache_modifier=".cg",
    )
    return tl.sum(tile, 0)


@triton.jit
def load_shared(ptr, n, BLOCK_N: tl.constexpr):
    """A vector (n,) that other programs wrote."""
    col = tl.arange(0, BLOCK_N)
    return tl.load(ptr + col, mask=col < n, other=0.0, cache_modifier=".cg")


@triton.jit
def feature_sums(
    u_ptr, v, first, last, n, Q: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, REAL: tl.constexpr
):
    """Over the features of one program: Σ K_i v, Σ (K_i v)² (vectors), Σ vᵀK_i v and Σ (vᵀK_i v)² (scalars)."""
    row = tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_N], REAL)
    squares = tl.zeros([BLOCK_N], REAL)
    norm = tl.cast(0.0, REAL)
    norm_squares = tl.cast(0.0, REAL)
    for start in range(first, last, BLOCK_M):
        feature = start + tl.arange(0, BLOCK_M)
        inside = (feature < last)[:, None] & (row < n)[None, :]
        t = tl.zeros([BLOCK_M, BLOCK_N], REAL)
        kappa = tl.zeros([BLOCK_M], REAL)
        for a in tl.static_range(Q):
            u = tl.load(u_ptr + (feature[:, None] * Q + a) * n + row[None, :], mask=inside, other=0.0).to(REAL)
            s = tl.sum(u * v[None, :], 1)
            t += u * s[:, None]
            kappa += s * s
        total += tl.sum(t, 0)
        squares += tl.sum(t * t, 0)
        norm += tl.sum(kappa, 0)
        norm_squares += tl.sum(kappa * kappa, 0)
    return total, squares, norm, norm_squares


@triton.jit
def feature_gradient(
    u_ptr,
    d,
    v,
    total,
    norm,
    c,
    first,
    last,
    n,
    Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    REAL: tl.constexpr,
):
    """One program's part of ∂/∂v = −4c·Σ_i K_i (d∘(Kv − K_i v)) + 4c²·Σ_i (vᵀKv − vᵀK_i v)·K_i v."""
    row = tl.arange(0, BLOCK_N)
    gradient = tl.zeros([BLOCK_N], REAL)
    for start in range(first, last, BLOCK_M):
        feature = start + tl.arange(0, BLOCK_M)
        inside = (feature < last)[:, None] & (row < n)[None, :]
        t = tl.zeros([BLOCK_M, BLOCK_N], REAL)
        kappa = tl.zeros([BLOCK_M], REAL)
        for a in tl.static_range(Q):
            u = tl.load(u_ptr + (feature[:, None] * Q + a) * n + row[None, :], mask=inside, other=0.0).to(REAL)
            s = tl.sum(u * v[None, :], 1)
            t += u * s[:, None]
            kappa += s * s
        r = d[None, :] * (total[None, :] - t)
        for a in tl.static_range(Q):
            u = tl.load(u_ptr + (feature[:, None] * Q + a) * n + row[None, :], mask=inside, other=0.0).to(REAL)
            s = tl.sum(u * v[None, :], 1)
            h = tl.sum(u * r, 1) - c * (norm - kappa) * s
            gradient += tl.sum(u * h[:, None], 0)
    return -4 * c * gradient


@triton.jit
def solve_program(
    u_ptr,  # (m, q, n) Fourier features
    pairs_ptr,  # (n, n) M
    k_ptr,  # (n, n) K, for label pairs
    l_ptr,  # (n, n) L = Y Yᵀ
    kl_ptr,  # (n, n) K∘L
    fixed_ptr,  # (n − size,) the memory's weights
    share_ptr,  # exchange between programs: (3, P, BLOCK_N) partial sums, (5, BLOCK_N) vectors, (2, P) scalars
    counter_ptr,  # barrier; zero at launch
    weights_ptr,  # out: (size,)
    logits_ptr,  # out: (size,)
    objective_ptr,  # out: (steps + 1,)
    facts_ptr,  # out: D before, D after, kept step, guarded steps, gap
    n,
    size,
    m,
    features_each,
    steps,
    decay_after,
    rate,
    momentum,
    penalty,
    spread_limit,
    PAPER: tl.constexpr,
    FEATURE_PAIRS: tl.constexpr,
    LABEL_PAIRS: tl.constexpr,
    RELATIVE: tl.constexpr,
    RETREAT: tl.constexpr,
    Q: tl.constexpr,
    P: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    REAL: tl.constexpr,
):
    """All inner steps of `solver.solve_weights`. Every program keeps the whole iterate and computes its share.

    A program owns some features (partial sums over them are exchanged) and some rows of the n × n matrices (whole
    entries are exchanged); two barriers a step. All programs sum the same numbers in the same order, so they agree to
    the bit and the result does not depend on timing. REAL is float64 in the paper form, which subtracts large numbers.
    """
    program = tl.program_id(0)
    first = program * features_each
    last = tl.minimum(first + features_each, m)
    row = tl.arange(0, BLOCK_N)
    own = program * ROWS + tl.arange(0, ROWS)
    own_inside = (own < n) & (own < (program + 1) * ROWS)
    present = row < n
    moving = present & (row >= n - size)
    fixed = tl.load(fixed_ptr + row, mask=row < n - size, other=0.0).to(REAL)
    partial = share_ptr + program * BLOCK_N
    stride = P * BLOCK_N
    vectors = share_ptr + 3 * stride
    scalars = vectors + 5 * BLOCK_N
    each = tl.arange(0, P)

    c = tl.cast(1.0, REAL)
    scale = tl.cast(1.0, REAL)
    if PAPER:
        c = c / n
        scale = scale / tl.maximum(n - 1, 1)
    parts = 0.0
    if FEATURE_PAIRS:
        parts += 1.0
    if LABEL_PAIRS:
        parts += 1.0

    theta = tl.zeros([BLOCK_N], REAL)
    velocity = tl.zeros([BLOCK_N], REAL)
    kept_theta = tl.zeros([BLOCK_N], REAL)
    kept_gradient = tl.zeros([BLOCK_N], REAL)
    kept_w = tl.where(moving, 1.0, 0.0).to(REAL)
    best_slope = tl.zeros([BLOCK_N], REAL)
    factor = tl.cast(1.0, REAL)
    feature_coefficient = tl.cast(1.0, REAL)
    label_coefficient = tl.cast(1.0, REAL)
    best = tl.cast(float("inf"), REAL)
    before = tl.cast(0.0, REAL)
    after = tl.cast(0.0, REAL)
    kept = tl.cast(0.0, REAL)
    guarded = tl.cast(0.0, REAL)
    waits = 0

    for step in range(steps + 1):
        top = tl.max(tl.where(moving, theta, -float("inf")), 0)
        raised = tl.where(moving, tl.exp(theta - top), 0.0)
        w = size * raised / tl.sum(raised, 0)
        spread = tl.sum(w * w, 0) / size - 1  # the variance, since the mean is one
        blended = spread > spread_limit
        shrink = tl.where(blended, tl.sqrt(spread_limit / tl.where(blended, spread, 1.0)), 1.0)
        spread = tl.where(blended, spread_limit, spread).to(REAL)
        w = tl.where(moving, tl.where(blended, 1 + shrink * (w - 1), w), 0.0)
        guarded += tl.where(blended, 1.0, 0.0).to(REAL)

        joined = tl.where(moving, w, fixed)
        weight_sum = tl.sum(joined, 0)
        if PAPER:
            v = joined
            d = joined * joined
        else:
            v = joined / weight_sum
            d = v

        # First exchange: sums over features, and rows of Kv and Lv.
        if FEATURE_PAIRS:
            total, squares, norm, norm_squares = feature_sums(u_ptr, v, first, last, n, Q, BLOCK_M, BLOCK_N, REAL)
            tl.store(partial + row, total)
            tl.store(partial + stride + row, squares)
            tl.store(scalars + program, norm)
            tl.store(scalars + P + program, norm_squares)
        if LABEL_PAIRS:
            tl.store(vectors + own, multiply_rows(k_ptr, v, own, n, BLOCK_N), mask=own_inside)
            tl.store(vectors + BLOCK_N + own, multiply_rows(l_ptr, v, own, n, BLOCK_N), mask=own_inside)
        waits += P
        wait_for_all(counter_ptr, waits)

        # Second exchange: the gradient through v, and rows of M d, (K∘L) d, K(d∘Lv), L(d∘Kv).
        if FEATURE_PAIRS:
            total = sum_partials(share_ptr, n, BLOCK_N, P, BLOCK_N)
            squares = sum_partials(share_ptr + stride, n, BLOCK_N, P, BLOCK_N)
            norm = tl.sum(tl.load(scalars + each, cache_modifier=".cg"), 0)
            norm_squares = tl.sum(tl.load(scalars + P + each, cache_modifier=".cg"), 0)
            own_gradient = feature_gradient(u_ptr, d, v, total, norm, c, first, last, n, Q, BLOCK_M, BLOCK_N, REAL)
            tl.store(partial + 2 * stride + row, own_gradient)
            tl.store(vectors + 2 * BLOCK_N + own, multiply_rows(pairs_ptr, d, own, n, BLOCK_N), mask=own_inside)
        if LABEL_PAIRS:
            k_v = load_shared(vectors, n, BLOCK_N)
            l_v = load_shared(vectors + BLOCK_N, n, BLOCK_N)
            kl_rows = multiply_rows(kl_ptr, d, own, n, BLOCK_N)
            back = multiply_rows(k_ptr, d * l_v, own, n, BLOCK_N) + multiply_rows(l_ptr, d * k_v, own, n, BLOCK_N)
            tl.store(vectors + 3 * BLOCK_N + own, kl_rows, mask=own_inside)
            tl.store(vectors + 4 * BLOCK_N + own, back, mask=own_inside)
        waits += P
        wait_for_all(counter_ptr, waits)

        # The value and the gradient in w, the same in every program.
        dependence = 0.0
        objective = penalty * (1 + spread)
        gradient = tl.where(moving, 2 * penalty * w / size, 0.0)
        if FEATURE_PAIRS:
            grad_v = sum_partials(share_ptr + 2 * stride, n, BLOCK_N, P, BLOCK_N)
            m_d = load_shared(vectors + 2 * BLOCK_N, n, BLOCK_N)
            g = total * total - squares
            half = 0.5 * scale * scale
            value = half * (tl.sum(d * (m_d - 2 * c * g), 0) + c * c * (norm * norm - norm_squares))
            grad_d = half * 2 * (m_d - c * g)
            grad_v = half * grad_v
            if RELATIVE:
                relative = tl.where(value > TINY, 1 / (tl.maximum(value, TINY) * parts), 0.0)
                feature_coefficient = tl.where(step == 0, relative, feature_coefficient)
            if PAPER:
                grad_w = 2 * joined * grad_d + grad_v
            else:
                grad_p = grad_d + grad_v
                grad_w = (grad_p - tl.sum(v * grad_p, 0)) / weight_sum
            dependence += value
            objective += feature_coefficient * value
            gradient += feature_coefficient * grad_w
        if LABEL_PAIRS:
            kl_d = load_shared(vectors + 3 * BLOCK_N, n, BLOCK_N)
            back = load_shared(vectors + 4 * BLOCK_N, n, BLOCK_N)
            v_k_v = tl.sum(v * k_v, 0)
            v_l_v = tl.sum(v * l_v, 0)
            square = scale * scale
            value = square * (tl.sum(d * (kl_d - 2 * c * k_v * l_v), 0) + c * c * v_k_v * v_l_v)
            grad_d = square * 2 * (kl_d - c * k_v * l_v)
            grad_v = square * 2 * c * (c * (v_l_v * k_v + v_k_v * l_v) - back)
            if RELATIVE:
                relative = tl.where(value > TINY, 1 / (tl.maximum(value, TINY) * parts), 0.0)
                label_coefficient = tl.where(step == 0, relative, label_coefficient)
            if PAPER:
                grad_w = 2 * joined * grad_d + grad_v
            else:
                grad_p = grad_d + grad_v
                grad_w = (grad_p - tl.sum(v * grad_p, 0)) / weight_sum
            dependence += value
            objective += label_coefficient * value
            gradient += label_coefficient * grad_w
        gradient = tl.where(moving, gradient, 0.0)

        # Keep the best iterate, uniform weights first.
        better = objective < best
        best = tl.where(better, objective, best)
        before = tl.where(step == 0, dependence, before)
        after = tl.where(better, dependence, tl.where(step == 0, dependence, after))
        kept_gradient = tl.where(better, gradient, tl.where(step == 0, gradient, kept_gradient))
        kept = tl.where(better, tl.cast(step, REAL), kept)
        kept_w = tl.where(better, w, kept_w)
        kept_theta = tl.where(better, theta, kept_theta)
        if program == 0:
            tl.store(objective_ptr + step, objective)

        slope = w * (gradient - tl.sum(w * gradient, 0) / size)
        if RELATIVE:
            slope = slope * size
        velocity = momentum * velocity + slope
        if RETREAT:
            theta = kept_theta
            best_slope = tl.where(better, slope, best_slope)
            velocity = tl.where(better, velocity, best_slope)
            factor = tl.where(better, factor, 0.25 * factor)
        theta = theta - tl.where(step >= decay_after, 0.1 * rate, rate) * factor * velocity

    if program == 0:
        place = row - (n - size)
        tl.store(weights_ptr + place, kept_w, mask=moving)
        tl.store(logits_ptr + place, kept_theta, mask=moving)
        tl.store(facts_ptr, before)
        tl.store(facts_ptr + 1, after)
        tl.store(facts_ptr + 2, kept)
        tl.store(facts_ptr + 3, guarded)
        lowest = tl.min(tl.where(moving, kept_gradient, float("inf")), 0)
        tl.store(facts_ptr + 4, tl.sum(kept_w * kept_gradient, 0) - size * lowest)
