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
    draw: Callable[[int], Sequence[Statistic]], fixed: Tensor, size: int, settings: WeightingSettings
) -> Solution:
    """As `solver.solve_weights`, until the gap is below `tolerance` times the objective, or for `steps` steps.

    An iterate that raised the objective is undone and tried again with a smaller rate. Reads the device at each step.
    """
    fixed = fixed.to(settings.working_dtype(fixed.device))
    simplex, objective = BlockSimplex(fixed, size, settings), Objective(settings, size)
    keeper = Keeper(settings, fixed, size)
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
        w = project_to_simplex(best - rate * slope)
    return keeper.solution()


def project_to_simplex(w: Tensor) -> Tensor:
    """The nearest point of {w ≥ 0, Σw = n} to w (n,): all entries lowered by one amount and cut at zero."""
    n = w.numel()
    high = w.sort(descending=True).values
    excess = (high.cumsum(0) - n) / torch.arange(1, n + 1, device=w.device, dtype=w.dtype)
    count = (high > excess).sum()  # entries that stay positive
    return (w - excess[count - 1]).clamp_min(0)
