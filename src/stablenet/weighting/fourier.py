"""Random Fourier features: functions whose covariance reveals dependence (Eq. 4, rff_transform)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Bandwidth = float | Literal["median"]

DISTANCES_AT_ONCE = 2**24  # held in an intermediate: 128 MiB in float64
BANDWIDTH_POINTS = 32  # order statistics behind a batch's median bandwidth: two digits, at no cost


@dataclass(frozen=True)
class FourierFunctions:
    """The drawn functions h(x) = √2·cos(ωx + φ), q of them for each of m features.

    omega: (m, q) frequencies, standard normal (divided by the bandwidth when applied).
    phase: (m, q) uniform on [0, 2π).
    columns: (m,) indices of the features that enter, or None for all of them.
    One object can hold several draws, see `stack_functions`.
    """

    omega: Tensor
    phase: Tensor
    columns: Tensor | None = None


def draw_fourier_functions(
    num_features: int,
    num_functions: float,
    *,
    shared: bool = False,
    generator: torch.Generator | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> FourierFunctions:
    """Draw `num_functions` functions per feature, or, for 0 < num_functions < 1, one for a random share.

    The share (the paper's 0.3x) is drawn here, hence anew with every batch: over many batches every feature
    takes part. At least two features are kept, since one alone has no pair.
    shared: one ω per function for all features, as in the published code; phases stay per feature.
    """
    columns = None
    if 0 < num_functions < 1:
        kept = min(num_features, max(2, round(num_functions * num_features)))
        columns = torch.randperm(num_features, generator=generator, device=device)[:kept]
        num_features, num_functions = kept, 1
    shape = (num_features, int(num_functions))
    omega_shape = (1, shape[1]) if shared else shape
    omega = torch.randn(omega_shape, generator=generator, device=device, dtype=dtype).expand(shape)
    phase = torch.rand(shape, generator=generator, device=device, dtype=dtype) * (2 * math.pi)
    return FourierFunctions(omega, phase, columns)


def stack_functions(draws: Sequence[FourierFunctions]) -> FourierFunctions:
    """Several draws for all features as one, to be applied at once: omega and phase (draws, 1, m, q)."""
    omega, phase = (torch.stack(parts).unsqueeze(1) for parts in zip(*((d.omega, d.phase) for d in draws), strict=True))
    return FourierFunctions(omega, phase)


def standardize(z: Tensor) -> Tensor:
    """Scale each column of z (n, m) to mean 0 and standard deviation 1; constant columns become zero.

    A column counts as constant when its spread is rounding noise beside its size. Zero columns have no
    covariance with anything in any form, so this drops them without changing a shape.
    """
    peak = z.abs().amax(0).clamp_min(torch.finfo(z.dtype).tiny)
    scaled = z / peak  # keeps squares of huge and tiny columns inside the float range
    centred = scaled - scaled.mean(0)
    spread = centred.square().mean(0).sqrt()
    constant = spread <= 8 * torch.finfo(z.dtype).eps
    return torch.where(constant, 0.0, centred / torch.where(constant, 1.0, spread))


def median_distance(z: Tensor, points: int = 256) -> Tensor:
    """The median distance between two different values of each column of z (n, m).

    Taken over at most `points` evenly spaced order statistics, so the order of the rows does not matter. Equal values
    are left out, or the many zeros of a rectified feature would make the median zero.
    Returns (m,); 1 for a constant column.
    """
    points = min(len(z), points)
    kept = torch.linspace(0, len(z) - 1, points, dtype=torch.float64).round().long().to(z.device)
    ordered = z.sort(0).values[kept]
    low, high = torch.triu_indices(points, points, 1, device=z.device)
    if not len(low):
        return z.new_ones(z.shape[1])
    middles = []
    for columns in ordered.split(max(1, DISTANCES_AT_ONCE // len(low)), 1):
        distance = columns[high] - columns[low]
        middles.append(torch.where(distance > 1e-9, distance, torch.nan).nanmedian(0).values)
    return torch.cat(middles).nan_to_num(1.0)


def apply_fourier_functions(
    z: Tensor,
    functions: FourierFunctions,
    bandwidth: Bandwidth = 1.0,
    *,
    with_sine: bool = False,
    scale_phases: bool = False,
) -> Tensor:
    """u_ia(x) = √2·cos(ω_ia·x/σ_i + φ_ia) (Eq. 4, rff_transform).   z: (n, m).   Returns (n, m', q).

    Two variants of the published code: with_sine gives √(2/q)·[cos, sin], hence (n, m', 2q); scale_phases first
    maps the angles, per sample and function, linearly onto [0, π/2] across the features.
    Several draws give (draws, n, m', q).
    """
    if functions.columns is not None:
        z = z[:, functions.columns]
    scale = median_distance(z, BANDWIDTH_POINTS) if bandwidth == "median" else float(bandwidth)
    angle = (z / scale).unsqueeze(-1) * functions.omega + functions.phase
    if scale_phases:
        angle = _scale_across_features(angle)
    if with_sine:
        return torch.cat([angle.cos(), angle.sin()], -1) * math.sqrt(2 / functions.omega.shape[-1])
    return math.sqrt(2) * angle.cos()


def _scale_across_features(angle: Tensor) -> Tensor:
    """Minimum to 0 and maximum to π/2 across the features of each sample.   angle: (…, n, m, q)."""
    lowest = angle.amin(-2, keepdim=True)
    reach = angle.amax(-2, keepdim=True) - lowest
    return (angle - lowest) / torch.where(reach > 0, reach, 1.0) * (math.pi / 2)


def random_fourier_features(
    z: Tensor,
    num_functions: float = 5,
    bandwidth: Bandwidth = 1.0,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Random Fourier features of the columns of z (Eq. 4, rff_transform, σ = 1 by default).

    z: (n, m) features of about unit scale; see `standardize`.
    num_functions: q ≥ 1 functions per feature; 0 < q < 1 takes a random share of the features, one
        function each; 0 is the linear case (StableNet-L) and returns z itself.
    bandwidth: σ, or "median" for the median distance of each feature.
    Returns (n, m, q); (n, m', 1) for a share; (n, m, 1) for the linear case.

    >>> random_fourier_features(torch.zeros(4, 3), 5).shape
    torch.Size([4, 3, 5])
    """
    if num_functions == 0:
        return z.unsqueeze(-1)
    functions = draw_fourier_functions(z.shape[1], num_functions, generator=generator, device=z.device, dtype=z.dtype)
    return apply_fourier_functions(z, functions, bandwidth)
