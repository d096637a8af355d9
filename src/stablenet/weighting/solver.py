"""The weight problem (Eq. 7, learning_weight): momentum steps on logits, or projected gradient steps to a tolerance.

w = B·softmax(θ), θ = 0 at the start, so that weights are non-negative and sum to the batch size B. Three guards:
the effective sample size ESS = (Σw)²/Σw² may not fall below a floor (the weights are blended towards one, in
closed form, until it holds); the kept iterate is the best by the objective that is minimised, uniform weights
included, so neither the objective nor the dependence ever rises; nothing non-finite is ever kept.

`solve_weights` takes some twenty steps on logits, in which a weight that has become tiny hardly moves. In
`solve_to_tolerance` a weight may be exactly zero and come back, so that the optimality gap can be driven down and
reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import torch
from torch import Tensor

from stablenet.long_work import count_steps
from stablenet.weighting.dependence import Statistic
from stablenet.weighting.settings import WeightingSettings
from stablenet.weighting.statistic import add
from stablenet.weighting.totals import GroupSimplex

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RATE_DECAY = 0.1  # what `decay_after` does to the rate
RETREAT = 0.25  # what a rise of the objective does to it with `on_rise="retreat"`


@dataclass(frozen=True)
class Solution:
    """The result of a solve. All tensors are on the features' device; none was read by the host."""

    weights: Tensor  # (B,) non-negative, sums to B
    logits: Tensor  # (B,) of the weights, before the guard
    dependence: Tensor  # (2,) D with uniform batch weights, and with the kept ones
    objective: Tensor  # (steps + 1,) J at every iterate, uniform first
    kept: Tensor  # index of the kept iterate in `objective`
    guarded: Tensor  # number of iterates the ESS guard blended
    gap: Tensor  # optimality gap of the kept iterate; NaN where none is defined
    halfway: Tensor | None = None  # (k,) D on the way from ones to the weights, where it was asked for

    def copied(self) -> Solution:
        """The same in tensors of its own."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: tensor.clone() for name, tensor in held.items() if tensor is not None})


def solve_weights(
    draw: Callable[[int], Sequence[Statistic]], fixed: Tensor, size: int, settings: WeightingSettings
) -> Solution:
    """Minimise the dependence over the weights of the last `size` rows.

    draw: gives the statistics of inner step i over all n = len(fixed) + size rows.
    fixed: (n − size,) the memory's weights (each group summing to its size), or logits with `logits="joint"`.
    """
    if fixed.device.type != "cpu":
        return _descend(draw, fixed, size, settings)
    with torch.inference_mode():  # of small operations in sequence, it spares a tenth of the time
        solution = _descend(draw, fixed, size, settings)
    return solution.copied()  # which a loss may be multiplied with


def _descend(
    draw: Callable[[int], Sequence[Statistic]], fixed: Tensor, size: int, settings: WeightingSettings
) -> Solution:
    fixed = fixed.to(settings.working_dtype(fixed.device))
    joint = JointSimplex(fixed, size) if settings.logits == "joint" else None
    simplex = joint or BlockSimplex(fixed, size, settings)
    objective, keeper = Objective(settings, size), Keeper(settings, fixed, size)
    descent = Descent(settings, objective.slope_scale, fixed.device)
    theta = fixed.new_zeros(size)
    for step in count_steps(settings.steps + 1, "solving for weights"):
        point = simplex.at(theta)
        value, grad_all, grad_batch = objective(draw(step), point)
        own = grad_all[fixed.numel() :] + grad_batch
        better = keeper.offer(step, value, objective.dependence, point, own)
        if step == settings.steps:
            break
        slope = softmax_pull_back(point.batch, own) if joint is None else joint.pull_back(point, grad_all, grad_batch)
        theta = descent.next_theta(step, theta, slope, better)
    return keeper.solution()


class Descent:
    """Momentum steps on the logits: v ← μ·v + slope, θ ← θ − η·v.

    With `on_rise="retreat"`, an iterate that is not the best so far is undone: the next step starts again from the
    best one, without momentum and at a quarter of the rate.
    """

    def __init__(self, settings: WeightingSettings, slope_scale: float, device: torch.device) -> None:
        self._settings = settings
        self._slope_scale = slope_scale
        self._retreats = settings.on_rise == "retreat"
        self._velocity: Tensor | None = None
        self._factor = torch.ones((), device=device)
        self._best: tuple[Tensor, Tensor]  # logits and slope of the best iterate

    def next_theta(self, step: int, theta: Tensor, slope: Tensor, better: Tensor) -> Tensor:
        """theta, slope: (B,) the iterate and the objective's slope there.   better: a boolean scalar."""
        velocity = slope if self._velocity is None else slope.add(self._velocity, alpha=self._settings.momentum)
        if self._retreats:
            if step:
                theta, slope = select(better, theta, self._best[0]), select(better, slope, self._best[1])
                velocity = select(better, velocity, slope)
                self._factor = select(better, self._factor, RETREAT * self._factor)
            self._best = theta, slope
        self._velocity = velocity
        return theta.sub(self._factor * velocity if self._retreats else velocity, alpha=self._rate(step))

    def _rate(self, step: int) -> float:
        decayed = self._settings.decay_after is not None and step >= self._settings.decay_after
        return self._slope_scale * self._settings.learning_rate * (RATE_DECAY if decayed else 1.0)


class Point(NamedTuple):
    """An iterate.   theta, batch: (B,).   joined: (n,), in the statistic.   blended: whether the guard acted."""

    theta: Tensor
    batch: Tensor
    joined: Tensor
    blended: Tensor


class BlockSimplex:
    """The batch's weights sum to its size, whatever the memory holds; blended where the ESS would be too low."""

    def __init__(self, fixed: Tensor, size: int, settings: WeightingSettings) -> None:
        self._fixed, self._size = fixed, size
        self._spread_limit = ess_spread_limit(settings.min_ess, size)

    def at(self, theta: Tensor) -> Point:
        return self.around(self._size * torch.softmax(theta, 0), theta)

    def around(self, weights: Tensor, theta: Tensor | None = None) -> Point:
        """The point of the given weights (B,), blended where the guard asks for it."""
        batch, blended = blend_to_ess(weights, self._spread_limit)
        theta = batch.clamp_min(torch.finfo(batch.dtype).tiny).log() if theta is None else theta
        return Point(theta, batch, torch.cat([self._fixed, batch]) if len(self._fixed) else batch, blended)


class JointSimplex:
    """One softmax over the memory's and the batch's logits in the statistic; the batch alone in the penalty."""

    def __init__(self, fixed: Tensor, size: int) -> None:
        self._fixed, self._size = fixed, size
        self._never = torch.zeros((), dtype=torch.bool, device=fixed.device)

    def at(self, theta: Tensor) -> Point:
        batch = self._size * torch.softmax(theta, 0)
        logits = torch.cat([self._fixed, theta])
        return Point(theta, batch, logits.numel() * torch.softmax(logits, 0), self._never)

    def pull_back(self, point: Point, grad_all: Tensor, grad_batch: Tensor) -> Tensor:
        """∂J/∂θ (B,), through both."""
        own = softmax_pull_back(point.joined, grad_all)[self._fixed.numel() :]
        return own + softmax_pull_back(point.batch, grad_batch)


class Objective:
    """J(w) = dependence + penalty, in one of four scales.

    sum:        D + λ·mean(w²)                 (the paper, its decay read as 0.3·mean(w²))
    relative:   mean over parts of D/D(1) + λ·mean(w²), the slope multiplied by B: free of every scale
    share:      mean over parts of D + λ·mean(w²), D a share of its possible maximum (problem.py), the slope as above:
                little dependence then means little weighting, whereas `relative` removes any dependence alike
    scaled-sum: D/λ + Σ(w/B)²                  (published code, λ = 70)
    """

    def __init__(self, settings: WeightingSettings, size: int) -> None:
        self._kind, self._penalty, self._size = settings.objective, settings.penalty, size
        self._scales: list[Tensor | float] | None = None  # of each part, known after the first point
        self.dependence = torch.empty(0)  # D at the last point
        self.slope_scale = float(size) if self._kind in ("relative", "share") else 1.0

    def __call__(self, statistics: Sequence[Statistic], point: Point) -> tuple[Tensor, Tensor, Tensor]:
        """J, its gradient through the statistic (n,), and its gradient through the penalty (B,)."""
        pairs = [statistic.value_and_gradient(point.joined) for statistic in statistics]
        self.dependence = add([value for value, _ in pairs])
        if self._scales is None:
            self._scales = [self._scale(value, len(pairs)) for value, _ in pairs]
        decay = self._penalty / self._size if self._kind != "scaled-sum" else 1 / self._size**2
        if self._kind != "sum":  # whose scales are one
            pairs = [(scale * value, scale * slope) for scale, (value, slope) in zip(self._scales, pairs, strict=True)]
        value = add([value for value, _ in pairs]) + decay * (point.batch @ point.batch)
        return value, add([slope for _, slope in pairs]), (2 * decay) * point.batch

    def _scale(self, start: Tensor, parts: int) -> Tensor | float:
        """The factor of a part, given its value under uniform weights."""
        if self._kind == "relative":
            tiny = torch.finfo(start.dtype).tiny
            # A part that is zero under uniform weights has nothing to remove: it does not steer.
            return torch.where(start > tiny, 1 / (parts * start.clamp_min(tiny)), 0.0)
        if self._kind == "share":
            return 1 / parts
        return 1 / self._penalty if self._kind == "scaled-sum" else 1.0


class Kept(NamedTuple):
    """The iterate to return: its number, J, D, ∂J/∂w (B,), weights (B,) and logits (B,)."""

    step: Tensor
    value: Tensor
    dependence: Tensor
    gradient: Tensor
    weights: Tensor
    theta: Tensor


class Keeper:
    """Holds the iterate that will be returned and the diagnostics of the solve."""

    def __init__(
        self,
        settings: WeightingSettings,
        like: Tensor,
        size: int,
        gap: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        self._measure_gap = gap or optimality_gap
        self._last_wins = settings.keep == "last"
        self._tolerance = settings.tolerance
        self._gap_exists = settings.logits == "block"
        # Not n·softmax(0), which is off by a rounding: uniform weights equal plain training bit for bit.
        self._ones = like.new_ones(size)
        self._objective: list[Tensor] = []
        self._guarded = like.new_zeros(())

    def offer(self, step: int, value: Tensor, dependence: Tensor, point: Point, gradient: Tensor) -> Tensor:
        """Record an iterate; returns whether it is the best so far (a boolean scalar on the device)."""
        self._objective.append(value)
        self._guarded = self._guarded + point.blended
        if step == 0:
            self._before = dependence
            self._kept = Kept(value.new_zeros(()), value, dependence, gradient, self._ones, point.theta)
            return torch.isfinite(value)
        better = torch.isfinite(value) if self._last_wins else value < self._kept.value
        if better.device.type == "cpu" and not better:  # there looking costs nothing
            return better
        new = Kept(value.new_full((), step), value, dependence, gradient, point.batch, point.theta)
        self._kept = Kept(*(select(better, yes, no) for yes, no in zip(new, self._kept, strict=True)))
        return better

    def converged(self) -> bool:
        """Whether the kept iterate's gap has fallen under the tolerance. Reads the device."""
        return self._tolerance is not None and bool(self._gap() <= self._tolerance * self._kept.value.abs())

    def _gap(self) -> Tensor:
        if not self._gap_exists:
            return self._kept.value.new_full((), float("nan"))
        return self._measure_gap(self._kept.weights, self._kept.gradient)

    def solution(self) -> Solution:
        return Solution(
            weights=self._kept.weights.float(),
            logits=self._kept.theta.float(),
            dependence=torch.stack([self._before, self._kept.dependence]),
            objective=torch.stack(self._objective),
            kept=self._kept.step,
            guarded=self._guarded,
            gap=self._gap(),
        )


def softmax_pull_back(w: Tensor, g: Tensor) -> Tensor:
    """The gradient in θ of a function with gradient g in w = n·softmax(θ), w∘(g − mean(w∘g)).   w, g: (n,)."""
    return w * (g - (w @ g) / w.numel())


def optimality_gap(w: Tensor, g: Tensor) -> Tensor:
    """⟨g, w⟩ − B·min g: how much a linear model of J could still fall on the simplex; zero at a minimum."""
    return w @ g - w.numel() * g.min()


def ess_spread_limit(min_ess: float, size: int | None = None) -> float:
    """The largest variance of weights with mean one whose ESS is still min_ess·B: 1/min_ess − 1.

    size: B. A batch never collapses to one sample: at least min(2, (B + 1)/2) effective samples are left.
    """
    limit = 1 / min_ess - 1 if min_ess > 0 else float("inf")
    return limit if size is None else min(limit, size / min(2.0, (size + 1) / 2) - 1)


def blend_to_ess(w: Tensor, spread_limit: float) -> tuple[Tensor, Tensor]:
    """Blend w (B,), mean one, towards one until its variance is at most the limit; and whether it was blended."""
    excess = w - 1
    spread = excess @ excess / w.numel()
    blended = spread > spread_limit
    if blended.device.type == "cpu" and not blended:
        return w, blended
    return select(blended, 1 + (spread_limit / spread).sqrt() * excess, w), blended


def select(flag: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """`torch.where` for a boolean scalar, which on the CPU is simply read: there reading costs nothing."""
    if flag.device.type == "cpu":
        return yes if flag else no
    return torch.where(flag, yes, no)


@overload
def effective_sample_size(w: Tensor) -> Tensor: ...
@overload
def effective_sample_size(w: NDArray[np.float64]) -> np.float64: ...
def effective_sample_size(w: Any) -> Any:
    """ESS = (Σw)² / Σw².   w: (n,), of torch or of NumPy.   Between 1 and n; n for uniform weights."""
    return w.sum() ** 2 / (w * w).sum()


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
    totals = GroupSimplex(fixed.new_zeros(size, dtype=torch.int64) if classes is None else classes)
    keeper = Keeper(settings, fixed, size, totals.gap)
    w, best, slope, rate = fixed.new_ones(size), fixed.new_ones(size), fixed.new_zeros(size), settings.learning_rate
    for step in count_steps(settings.steps + 1, "solving for weights"):
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
