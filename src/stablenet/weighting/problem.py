"""From joined rows and settings to the statistics whose sum is minimised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from stablenet.weighting.converge import solve_to_tolerance
from stablenet.weighting.dependence import Method, Statistic, prepare_label_pairs, prepare_pairs
from stablenet.weighting.fourier import (
    FourierFunctions,
    apply_fourier_functions,
    draw_fourier_functions,
    standardize,
)
from stablenet.weighting.settings import WeightingSettings
from stablenet.weighting.share import doubt, unit_functions, unit_labels
from stablenet.weighting.solver import Solution, solve_weights


class SameFunctionPairs:
    """Only functions of the same number are paired, each ordered pair counted (published code): 2·Σ_a D_a."""

    def __init__(self, parts: Sequence[Statistic]) -> None:
        self._parts = parts

    def value_and_gradient(self, w: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = zip(*(part.value_and_gradient(w) for part in self._parts), strict=True)
        return 2 * torch.stack(values).sum(), 2 * torch.stack(gradients).sum(0)


def solve_problem(
    rows: Tensor,
    labels: Tensor | None,
    fixed: Tensor,
    size: int,
    settings: WeightingSettings,
    generator: torch.Generator,
) -> Solution:
    """Weights of the last `size` of the rows (n, m), given those of the others, `fixed` (n − size,)."""
    with torch.autocast(rows.device.type, enabled=False):
        draw = draw_statistics(rows, labels, settings, generator)
        if settings.chance and labels is not None:
            ones = rows.new_ones(len(rows), dtype=settings.working_dtype(rows.device))
            share = sum(float(part.value_and_gradient(ones)[0]) for part in draw(0))
            settings = replace(settings, penalty=settings.penalty + settings.chance * doubt(labels, share))
        if settings.tolerance is None:
            return solve_weights(draw, fixed, size, settings)
        kept = labels if settings.totals == "classes" and labels is not None and labels.ndim == 1 else None
        return solve_to_tolerance(draw, fixed, size, settings, None if kept is None else kept[fixed.numel() :])


def draw_statistics(
    z: Tensor, labels: Tensor | None, settings: WeightingSettings, generator: torch.Generator
) -> Callable[[int], Sequence[Statistic]]:
    """The statistics of every inner step, over rows z (n, m): drawn once, or anew at each step.

    labels: (n,) integers or (n, C) columns; needed when label pairs are on.
    """
    z = standardize(z) if settings.scaling == "standard" else z

    def draw() -> Sequence[Statistic]:
        u = fourier_rows(z, settings, generator)
        return prepare_statistics(u.to(settings.working_dtype(u.device)), labels, settings)

    if settings.redraw == "step":
        return lambda step: draw()
    once = draw()
    return lambda step: once


def draw_functions(width: int, settings: WeightingSettings, generator: torch.Generator) -> FourierFunctions:
    """The Fourier functions of one batch (or one inner step) for features of the given width."""
    return draw_fourier_functions(
        width,
        settings.num_functions,
        shared=settings.fourier == "cosine-sine",
        generator=generator,
        device=generator.device,
    )


def fourier_rows(z: Tensor, settings: WeightingSettings, generator: torch.Generator) -> Tensor:
    """Fourier features of z (n, m) with newly drawn functions; constant columns stay out. Returns (n, m', q')."""
    if settings.num_functions == 0:
        return z.unsqueeze(-1)
    functions = draw_functions(z.shape[1], settings, generator)
    u = apply_fourier_functions(
        z,
        functions,
        settings.bandwidth,
        with_sine=settings.fourier == "cosine-sine",
        scale_phases=settings.scaling == "phase",
    )
    if settings.scaling != "standard":
        return u
    kept = z if functions.columns is None else z[:, functions.columns]
    return u * kept.any(0).to(u.dtype)[:, None]  # standardize made constant columns zero; cos would not


def prepare_statistics(u: Tensor, labels: Tensor | None, settings: WeightingSettings) -> list[Statistic]:
    """The parts of the dependence that the settings ask for.   u: (n, m, q)."""
    if settings.objective == "share":
        u = unit_functions(u)
        labels = None if labels is None else unit_labels(labels, u.dtype)
    method: Method = "auto" if settings.method == "fused" else settings.method
    evaluations = 1 if settings.redraw == "step" else settings.steps + 1
    parts: list[Statistic] = []
    if settings.pairs != "labels":
        if settings.pairing == "same":
            each = [prepare_pairs(u[..., a : a + 1], settings.form, method, evaluations) for a in range(u.shape[2])]
            parts.append(SameFunctionPairs(each))
        else:
            parts.append(prepare_pairs(u, settings.form, method, evaluations))
    if settings.pairs != "features":
        assert labels is not None
        parts.append(prepare_label_pairs(u, labels, settings.form, method))
    return parts
