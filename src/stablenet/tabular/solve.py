"""Weights for all n rows at once (Eq. 7, learning_weight, no batches), found by L-BFGS over the weights themselves.

J(w) = D(w)/D(1) + λ·mean(w²) over mean(w)², w ≥ 0: the objective of `weighting.solver`, free of every scale, of w too.
There a few cheap momentum steps on logits are taken for every batch; here one problem is solved well and every
evaluation is dear. In w the objective is nearly quadratic, and bounded L-BFGS is done after some ten evaluations, where
L-BFGS over logits is not after sixty (10,000 × 50 table).

A sample weight s_i is a row that stands there s_i times. Every mean is taken under s, and the optimiser works on
√s_i·w_i, in which its steps are those on the table with the repeated rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import Bounds, minimize
from torch import Tensor

from stablenet.errors import UserError
from stablenet.tabular.reading import Array
from stablenet.weighting.dependence import Statistic
from stablenet.weighting.solver import ess_spread_limit

MEMORY = 10  # pairs L-BFGS keeps


@dataclass(frozen=True, kw_only=True)
class SolveSettings:
    """How far the weights may go, and how long they are sought."""

    penalty: float = 0.02  # λ·mean(w²): keeps the effective sample size up
    min_ess: float = 0.1  # floor of the effective sample size, as a share of the rows
    max_evaluations: int = 60
    tolerance: float = 1e-4  # stop when an iteration lowers J by less than this share

    def __post_init__(self) -> None:
        for name, value, holds, expected in (
            ("penalty", self.penalty, self.penalty >= 0, "0 or more"),
            ("min_ess", self.min_ess, 0 <= self.min_ess <= 1, "a share in [0, 1]"),
            ("max_evaluations", self.max_evaluations, self.max_evaluations >= 1, "at least 1"),
            ("tolerance", self.tolerance, self.tolerance >= 0, "0 or more"),
        ):
            if not holds:
                raise UserError(f"{name} is {value!r}: expected {expected}")


def solve_table(statistic: Statistic, base: Array, settings: SolveSettings) -> Array:
    """The factors w (n,) by which the base weights are multiplied; mean one under the base.

    base: (n,) positive; sample weights, ones without.
    """
    problem = TableProblem(statistic, torch.from_numpy(base), settings.penalty)
    if problem.start <= 0:
        return np.ones_like(base)  # one column, or constant ones: nothing depends on anything
    result = minimize(
        problem,
        np.sqrt(base),
        jac=True,
        method="L-BFGS-B",
        bounds=Bounds(0, np.inf),
        options={
            "maxfun": settings.max_evaluations,
            "maxiter": settings.max_evaluations,
            "maxcor": MEMORY,
            "ftol": settings.tolerance,
            "gtol": 0.0,
        },
    )
    weights = blend_to_floor(problem.weights(result.x), problem.share, settings.min_ess)
    return np.asarray(weights.numpy())


class TableProblem:
    """J and its gradient as the optimiser wants them: float64 arrays over √s·w."""

    def __init__(self, statistic: Statistic, base: Tensor, penalty: float) -> None:
        self._statistic, self._penalty = statistic, penalty
        self._base, self._root = base, base.sqrt()
        self._total = float(base.sum())
        self.share = base / self._total
        self.start = float(statistic.value_and_gradient(base)[0])  # D(1)

    def __call__(self, scaled: Array) -> tuple[float, Array]:
        w = torch.from_numpy(scaled) / self._root
        mean, square = float(self.share @ w), float(self.share @ w.square())
        dependence, slope = self._statistic.value_and_gradient(self._base * w)
        value = float(dependence) / self.start + self._penalty * square / mean**2
        decay = 2 * self._penalty / mean**2 * self.share * (w - square / mean)
        gradient = self._base * slope / self.start + decay
        # Multiplied by Σs, so that the optimiser's first step does not shrink with the number of rows.
        return self._total * value, self._total * (gradient / self._root).numpy()

    def weights(self, scaled: Array) -> Tensor:
        """w (n,), non-negative, mean one under the base.   scaled: (n,) √s·w of any scale."""
        w = torch.from_numpy(scaled) / self._root
        return w / (self.share @ w)


def blend_to_floor(w: Tensor, share: Tensor, min_ess: float) -> Tensor:
    """Blend w (n,), mean one under the shares (n,), towards one until ESS/n ≥ min_ess."""
    spread = float(share @ (w - 1).square())
    limit = ess_spread_limit(min_ess)
    return w if spread <= limit else 1 + (limit / spread) ** 0.5 * (w - 1)
