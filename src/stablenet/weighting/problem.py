"""The weight problem: from features, labels and settings to the statistics whose sum is minimised.

With `objective="share"`, the dependence is a share of its possible maximum, so that its value means the same for every
network.

With functions of unit variance and classes weighted by 1/√frequency, label pairs give the mean correlation ratio

    share(w) = 1/k Σ_j η²_j(w),   η² = share of a function's variance that lies between the classes,

between 0 (the label says nothing about the features) and 1. Permuting the labels of n samples in C classes leaves
(C − 1)/(n − 1) of it on average: what lies below is chance, and weights that remove chance remove nothing. So the
penalty of uneven weights grows by a multiple of

    doubt = (C − 1)/(n − 1) / √share(1),

chance divided by the correlation: much with few samples, little where the label explains a lot.

Such a solve is about a thousand small operations in sequence. Divided among threads, each of them waits for the slowest
thread; on a machine that is doing anything else, that wait is many times longer than the work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from stablenet.weighting.dependence import Method, Statistic, prepare_label_pairs, prepare_pairs, prepare_same_pairs
from stablenet.weighting.fourier import (
    FourierFunctions,
    apply_fourier_functions,
    draw_fourier_functions,
    stack_functions,
    standardize,
)
from stablenet.weighting.settings import WeightingSettings
from stablenet.weighting.solver import Solution, solve_to_tolerance, solve_weights
from stablenet.weighting.statistic import add

WORTH_SHARING = 2**20  # numbers, of which an operation reads all; a millisecond's work for one thread
WORTH_SHARING_PRODUCTS = 2**27  # multiply-adds of a few large products: ten milliseconds


@contextmanager
def fitting_threads(device: torch.device, work: int, worth: int = WORTH_SHARING) -> Iterator[None]:
    """On the processor one thread within the block, where the work is below what is worth sharing."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1 or work >= worth:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


SMALLEST = 1e-12  # share: below it there is nothing that weights could remove


def unit_functions(u: Tensor) -> Tensor:
    """u (n, m, q) with unit variance in every function, divided by √(m·q): squares then sum to a mean."""
    n, m, q = u.shape
    rows: Tensor = standardize(u.reshape(n, -1)) / (m * q) ** 0.5
    return rows.view(n, m, q)


def unit_labels(labels: Tensor, dtype: torch.dtype) -> Tensor:
    """Columns (n, C) whose covariances with a standardized function square and sum to its explained share.

    labels: (n,) integer classes: one-hot, each class divided by the root of its frequency; (n, C) columns:
    standardized and divided by √C.
    """
    if labels.ndim == 2:
        standard: Tensor = standardize(labels.to(dtype))
        return standard.div(labels.shape[1] ** 0.5)
    found: tuple[Tensor, Tensor, Tensor] = labels.unique(return_inverse=True, return_counts=True)
    _, codes, counts = found
    return torch.nn.functional.one_hot(codes).to(dtype) * (len(labels) / counts.to(dtype)).sqrt()


def chance_share(labels: Tensor) -> float:
    """What permuted labels explain on average: (C − 1)/(n − 1) for classes (n,), 1/(n − 1) for columns (n, C)."""
    freedom = len(labels.unique()) - 1 if labels.ndim == 1 else 1
    return freedom / max(len(labels) - 1, 1)


def doubt(labels: Tensor, share: float) -> float:
    """How far a share that the labels explain may be due to chance (see above)."""
    return chance_share(labels) / math.sqrt(max(share, SMALLEST))


ANGLES_AT_ONCE = 2**17  # of several draws: so few that their launches cost more than the work


def solve_problem(
    rows: Tensor,
    labels: Tensor | None,
    fixed: Tensor,
    size: int,
    settings: WeightingSettings,
    generator: torch.Generator,
    strengths: Sequence[float] = (),
) -> Solution:
    """Weights of the last `size` of the rows (n, m), given those of the others, `fixed` (n − size,).

    strengths: `Solution.halfway` is the dependence under weights 1 + s·(w − 1), for each of these s.
    """
    numbers = rows.numel() * max(1, int(settings.num_functions))
    with torch.autocast(rows.device.type, enabled=False):
        with fitting_threads(rows.device, numbers * len(rows), WORTH_SHARING_PRODUCTS):
            draw = draw_statistics(rows, labels, settings, generator)
        with fitting_threads(rows.device, numbers):
            return solve_drawn(draw, labels, fixed, size, settings, strengths)


def solve_drawn(
    draw: Callable[[int], Sequence[Statistic]],
    labels: Tensor | None,
    fixed: Tensor,
    size: int,
    settings: WeightingSettings,
    strengths: Sequence[float] = (),
) -> Solution:
    """As `solve_problem`, given the statistics of every inner step.   labels: of all rows."""
    dtype = settings.working_dtype(fixed.device)
    if settings.chance and labels is not None:
        ones = fixed.new_ones(len(fixed) + size, dtype=dtype)
        first = draw(0)
        share = sum(float(part.value_and_gradient(ones)[0]) for part in first)
        draw = begin_with(first, draw)
        settings = replace(settings, penalty=settings.penalty + settings.chance * doubt(labels, share))
    if settings.tolerance is None:
        solution = solve_weights(draw, fixed, size, settings)
    else:
        kept = labels if settings.totals == "classes" and labels is not None and labels.ndim == 1 else None
        classes = None if kept is None else kept[fixed.numel() :]
        solution = solve_to_tolerance(draw, fixed, size, settings, classes)
    if not strengths:
        return solution
    weights = solution.weights.to(dtype)
    return replace(solution, halfway=measure_halfway(draw(0), fixed.to(dtype), weights, strengths))


def measure_halfway(
    statistics: Sequence[Statistic], fixed: Tensor, weights: Tensor, strengths: Sequence[float]
) -> Tensor:
    """The dependence under weights 1 + s·(w − 1), for each s.   fixed: (n − size,).   weights: (size,)."""
    points = (torch.cat([fixed, 1 + strength * (weights - 1)]) for strength in strengths)
    return torch.stack([add([part.value_and_gradient(point)[0] for part in statistics]) for point in points])


def interpolate(values: Tensor, places: Sequence[float], at: Tensor) -> Tensor:
    """Lagrange's polynomial through `values` (k,) at `places`, at a scalar; exact at the places themselves."""
    total = torch.zeros_like(at)
    for here, place in enumerate(places):
        others = [other for number, other in enumerate(places) if number != here]
        basis = torch.stack([(at - other) / (place - other) for other in others]).prod()
        total = total + torch.where(basis == 0, 0.0, basis * values[here])
    return total


def begin_with(
    first: Sequence[Statistic], draw: Callable[[int], Sequence[Statistic]]
) -> Callable[[int], Sequence[Statistic]]:
    """`draw`, without drawing step 0 again."""
    return lambda step: draw(step) if step else first


def draw_statistics(
    z: Tensor, labels: Tensor | None, settings: WeightingSettings, generator: torch.Generator
) -> Callable[[int], Sequence[Statistic]]:
    """The statistics of every inner step, over rows z (n, m): drawn once, or anew at each step.

    labels: (n,) integers or (n, C) columns; needed when label pairs are on.
    """
    z = standardize(z) if settings.scaling == "standard" else z
    linear = settings.num_functions == 0
    if settings.redraw == "step" and not linear:
        return Redrawn(z, labels, settings, generator)
    u = z.unsqueeze(-1) if linear else fourier_rows(z, settings, draw_functions(z.shape[1], settings, generator))
    once = prepare_statistics(u, labels, settings)
    return lambda step: once


class Redrawn:
    """The statistics of inner steps that have functions of their own.

    In a small problem the functions of several steps are applied at once, which spares launches.
    """

    def __init__(
        self, z: Tensor, labels: Tensor | None, settings: WeightingSettings, generator: torch.Generator
    ) -> None:
        self._z, self._labels, self._settings, self._generator = z, labels, settings, generator
        angles = z.numel() * max(1, int(settings.num_functions))
        self._at_once = max(1, ANGLES_AT_ONCE // angles) if settings.num_functions >= 1 else 1
        self._steps, self._rows = range(0), z  # which have been drawn together, and their Fourier features

    def __call__(self, step: int) -> Sequence[Statistic]:
        if self._at_once == 1:
            return self._prepare(fourier_rows(self._z, self._settings, self._draw()))
        if step not in self._steps:
            self._steps = range(step, max(step + 1, min(step + self._at_once, self._settings.steps + 1)))
            functions = stack_functions([self._draw() for _ in self._steps])
            self._rows = fourier_rows(self._z, self._settings, functions)
        return self._prepare(self._rows[step - self._steps.start])

    def _draw(self) -> FourierFunctions:
        return draw_functions(self._z.shape[1], self._settings, self._generator)

    def _prepare(self, u: Tensor) -> Sequence[Statistic]:
        return prepare_statistics(u, self._labels, self._settings)


def draw_functions(width: int, settings: WeightingSettings, generator: torch.Generator) -> FourierFunctions:
    """The Fourier functions of one batch (or one inner step) for features of the given width."""
    return draw_fourier_functions(
        width,
        settings.num_functions,
        shared=settings.fourier == "cosine-sine",
        generator=generator,
        device=generator.device,
    )


def fourier_rows(z: Tensor, settings: WeightingSettings, functions: FourierFunctions) -> Tensor:
    """Fourier features of z (n, m), constant columns left out: (n, m', q'), of several draws (draws, n, m', q')."""
    u = apply_fourier_functions(
        z,
        functions,
        settings.bandwidth,
        with_sine=settings.fourier == "cosine-sine",
        scale_phases=settings.scaling == "phase",
    )
    if settings.scaling != "standard":
        return u
    kept = z.any(0) if functions.columns is None else z.any(0)[functions.columns]
    return u * kept.to(u.dtype)[:, None]  # standardize made constant columns zero; cos would not


def prepare_statistics(u: Tensor, labels: Tensor | None, settings: WeightingSettings) -> list[Statistic]:
    """The parts of the dependence that the settings ask for.   u: (n, m, q)."""
    dtype = settings.working_dtype(u.device)
    if settings.objective == "share":
        u = unit_functions(u.to(dtype))
        labels = None if labels is None else unit_labels(labels, dtype)
    method: Method = "auto" if settings.method == "fused" else settings.method
    evaluations = 1 if settings.redraw == "step" else settings.steps + 1
    parts: list[Statistic] = []
    if settings.pairs != "labels":
        prepare = prepare_same_pairs if settings.pairing == "same" else prepare_pairs
        parts.append(prepare(u, settings.form, method, evaluations, dtype))
    if settings.pairs != "features":
        assert labels is not None
        parts.append(prepare_label_pairs(u.to(dtype), labels, settings.form, method))
    return parts
