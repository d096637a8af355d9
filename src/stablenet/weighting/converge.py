"""The weight problem run to a tolerance: projected gradient steps on the weights themselves.

The logits' steps of `solver.py` are made for twenty of them: a weight that has become tiny hardly moves in its logit.
Here a weight may be exactly zero and come back, so that the optimality gap can be driven down and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stablenet.weighting.dependence import Statistic
from stablenet.weighting.settings import WeightingSettings
from stablenet.weighting.solver import BlockSimplex, Keeper, Objective, Solution

GROW, SHRINK = 1.3, 0.4  # what a fall and a rise of the objective do to the rate


def solve_to_tolerance(
    draw: Callable[[int], Sequence[Statistic]],
    fixed: Tensor,
    size: int,
    settings: WeightingSettings,
    classes: Tensor | None = None,
) -> Solution:
    """As `solver.solve_weights`, until the gap is below `tolerance` times the objective, or for `steps` steps.

    classes: (size,) integers; the weights of each class keep its number of samples as their sum. None: all together.
    An iterate that raised the objective is undone and tried again with a smaller rate. Reads the device at each step.
    """
    fixed = fixed.to(settings.working_dtype(fixed.device))
    simplex, objective = BlockSimplex(fixed, size, settings), Objective(settings, size)
    totals = Totals(fixed.new_zeros(size, dtype=torch.int64) if classes is None else classes)
    keeper = Keeper(settings, fixed, size, totals.gap)
    w, best, slope, rate = fixed.new_ones(size), fixed.new_ones(size), fixed.new_zeros(size), settings.learning_rate
    for step in range(settings.steps + 1):
        point = simplex.around(w)
        value, grad_all, grad_batch = objective(draw(step), point)
        gradient = grad_all[fixed.numel() :] + grad_batch
        better = bool(keeper.offer(step, value, objective.dependence, point, gradient))
        if step == settings.steps or keeper.converged():
            break
        if better:
            best, slope = point.batch, gradient * objective.slope_scale
        rate = rate * (GROW if better else SHRINK)
        w = totals.project(best - rate * slope)
    return keeper.solution()


class Totals:
    """{w ≥ 0, the weights of every group sum to its number of samples}.   groups: (n,) integers."""

    def __init__(self, groups: Tensor) -> None:
        found: tuple[Tensor, Tensor, Tensor] = groups.unique(return_inverse=True, return_counts=True)
        _, self._group, self._count = found
        n, self._widest = len(groups), int(self._count.max())
        order = self._group.argsort(stable=True)
        place = torch.arange(n, device=groups.device) - (self._count.cumsum(0) - self._count)[self._group[order]]
        self._slot = torch.empty_like(self._group)  # of every sample in a table of groups × places
        self._slot[order] = self._group[order] * self._widest + place

    def project(self, w: Tensor) -> Tensor:
        """The nearest point to w (n,): the entries of a group lowered by one amount and cut at zero."""
        high = self._spread(w, float("-inf")).sort(1, descending=True).values
        there = high.isfinite()
        sums = torch.where(there, high, 0.0).cumsum(1) - self._count.to(w.dtype)[:, None]
        excess = sums / torch.arange(1, self._widest + 1, device=w.device, dtype=w.dtype)
        positive = (there & (high > excess)).sum(1, keepdim=True)  # entries that stay so
        return (w - excess.gather(1, positive - 1).squeeze(1)[self._group]).clamp_min(0)

    def gap(self, w: Tensor, g: Tensor) -> Tensor:
        """⟨g, w⟩ − Σ_groups count·min g: how much a linear model could still fall; zero at a minimum."""
        lowest = self._spread(g, float("inf")).amin(1)
        return w @ g - self._count.to(g.dtype) @ lowest

    def _spread(self, values: Tensor, empty: float) -> Tensor:
        table = values.new_full((len(self._count) * self._widest,), empty)
        table[self._slot] = values
        return table.view(len(self._count), self._widest)
