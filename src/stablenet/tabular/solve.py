"""The functions of a table's columns whose covariances are minimised, and the weights that do so.

J(w) = D(w)/D(1) + λ·mean(w²) over mean(w)², w ≥ 0: the objective of `weighting.solver`, free of every scale, of w too.
There a few cheap momentum steps on logits are taken for every batch; here one problem is solved accurately and every
evaluation is expensive. In w the objective is nearly quadratic, and bounded L-BFGS is done after some ten evaluations,
where L-BFGS over logits is not after sixty (10,000 × 50 table).

A sample weight s_i means that a row occurs s_i times. Every mean is taken under s, and the optimiser works on √s_i·w_i,
in which its steps are those on the table with the repeated rows.

Each numeric column brings itself and q random Fourier functions (Eq. 4, rff_transform); a category its one-hot columns.
The column itself is included because a linear model is misled by exactly its covariances.
The paper balances pairs of features. Pairs are not enough when the outcome holds a product such as x1·x2·x3: a fourth
column can depend on the product and on none of its factors. Fourier functions of several columns detect that, and are
balanced against every function of the columns they do not contain. On request the features of a small network fitted to
the outcome replace the columns: this is what the paper balances, for a table.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from scipy.optimize import fmin_l_bfgs_b
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier, MLPRegressor
from torch import Tensor

from stablenet.tabular.encode import ColumnBlock, Encoding, group_blocks
from stablenet.tabular.reading import Array
from stablenet.values import AtLeast, Count, NonNegative, Seed, Share, Whole, check_fields
from stablenet.weighting.dependence import Statistic
from stablenet.weighting.solver import ess_spread_limit
from stablenet.weighting.statistic import (
    ROWS_AT_ONCE,
    DirectBlocks,
    WeightMeasure,
    add,
    measure_weights,
    quadratic_forms,
)

FEWEST_ROWS_TO_STOP_EARLY = 100


def small_network(classification: bool, rows: int, seed: int, hidden: tuple[int, ...] = (32,)) -> Any:
    """An unfitted network of scikit-learn's with tanh units; stops early where there are rows to spare."""
    kind = MLPClassifier if classification else MLPRegressor
    return kind(
        hidden_layer_sizes=hidden,
        activation="tanh",
        random_state=seed,
        early_stopping=rows >= FEWEST_ROWS_TO_STOP_EARLY and not classification,
        max_iter=200,
    )


def network_features(
    design: Array, y: Array, base: Array, *, classification: bool, width: int, seed: int
) -> tuple[Array, Encoding]:
    """The hidden layer (n, width) of a network fitted to y, standardised, one block for each unit."""
    network = small_network(classification, len(design), seed, (width,))
    with warnings.catch_warnings():
        # The features need not be the optimum's; a network stopped after its epochs serves as well.
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(design, y if classification else (y - y.mean()) / (y.std() or 1.0), sample_weight=base)
    hidden = np.tanh(design @ network.coefs_[0] + network.intercepts_[0])
    share = base / base.sum()
    mean = share @ hidden
    spread = np.sqrt(share @ (hidden - mean) ** 2)
    features = np.where(spread > 1e-12, (hidden - mean) / np.where(spread > 1e-12, spread, 1.0), 0.0)
    blocks = tuple(ColumnBlock(f"unit {i}", i) for i in range(width))
    return features, Encoding(blocks, np.zeros(width), np.ones(width))


# Up to this many numbers the statistic is computed in float64, where a solve repeats to ten digits under any order of
# the rows; above, float32 halves time and memory and is exact enough (see statistic.py).
FLOAT64_UP_TO = 2**21
# Bytes of functions that are kept between passes. Beyond it computing them anew costs a tenth of an evaluation's time.
KEPT_UP_TO = 2**26


@dataclass(frozen=True, kw_only=True)
class FunctionSettings:
    """Which functions of the columns are compared."""

    num_functions: Whole = 5  # q, Fourier functions per numeric column (the paper's figure); 0 is the linear case
    interactions: Whole = 100  # Fourier functions of several columns; 0 is the paper's pairwise statistic
    order: Annotated[int, AtLeast(2)] = 3  # columns in each of those; more see less of each other's products
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Functions:
    """k functions of the d columns of a design with m blocks: x itself, or √2·cos(xᵀω + φ).

    omega: (d, k).   phase: (k,), NaN for a function that is linear.   members: (k, m) the blocks it looks at.
    """

    omega: Tensor
    phase: Tensor
    members: Tensor


def draw_functions(encoding: Encoding, settings: FunctionSettings) -> Functions:
    """Draw the functions; the same seed and table layout draw the same ones, whatever the rows."""
    generator = torch.Generator().manual_seed(settings.seed)
    drawn = [*_single_functions(encoding, settings, generator), *_joint_functions(encoding, settings, generator)]
    omega, phase, members = zip(*drawn, strict=True)
    return Functions(torch.stack(omega, 1), torch.tensor(phase, dtype=torch.float64), torch.stack(members))


Drawn = Iterator[tuple[Tensor, float, Tensor]]


def _single_functions(encoding: Encoding, settings: FunctionSettings, generator: torch.Generator) -> Drawn:
    count = len(encoding.blocks)
    for i, block in enumerate(encoding.blocks):
        member = torch.arange(count) == i
        for column in range(block.start, block.start + block.width):
            yield _unit(encoding.width, column), math.nan, member
        for _ in range(settings.num_functions if block.categories is None else 0):
            frequency, phase = _draw(1, generator)
            yield _unit(encoding.width, block.start) * frequency, phase, member


def _joint_functions(encoding: Encoding, settings: FunctionSettings, generator: torch.Generator) -> Drawn:
    count = len(encoding.blocks)
    order = min(settings.order, count - 1)  # one column at least must be left to compare with
    for _ in range(settings.interactions if order >= 2 else 0):
        chosen = torch.randperm(count, generator=generator)[:order]
        frequency, phase = _draw(encoding.width, generator)
        omega = torch.zeros(encoding.width, dtype=torch.float64)
        for i in chosen.tolist():
            omega[encoding.blocks[i].columns] = frequency[encoding.blocks[i].columns]
        yield omega, phase, torch.isin(torch.arange(count), chosen)


def _unit(width: int, column: int) -> Tensor:
    return (torch.arange(width) == column).to(torch.float64)


def _draw(width: int, generator: torch.Generator) -> tuple[Tensor, float]:
    frequency = torch.randn(width, generator=generator, dtype=torch.float64)
    phase = torch.rand((), generator=generator, dtype=torch.float64) * (2 * math.pi)
    return frequency, float(phase)


class FunctionRows:
    """All k functions of a table's rows, scaled and centred, some rows at a time: (n, k) numbers are not held at once.

    Those of the first rows are kept, up to `KEPT_UP_TO` bytes; the others are computed anew in every pass.
    """

    def __init__(self, design: Array, functions: Functions) -> None:
        self.total, self.count = len(design), len(functions.phase)
        self._design, self._functions = design, functions
        self.dtype = torch.float64 if self.total * self.count <= FLOAT64_UP_TO else torch.float32
        constant = torch.from_numpy(design.min(0) == design.max(0))
        self._varies = ~(constant[:, None] | (functions.omega == 0)).all(0)
        self._factor = torch.ones(self.count, dtype=self.dtype)
        self._centre = torch.zeros(self.count, dtype=self.dtype)
        # One buffer serves all parts: see `quadratic_forms`.
        self._buffer = torch.empty(min(self.total, ROWS_AT_ONCE), self.count, dtype=self.dtype)
        self._kept: list[Tensor] = []
        self._room = 0

    def scale(self, base: Array, factor: Tensor) -> None:
        """Multiply the functions by `factor` (k,), then take off their means under the base weights (n,)."""
        self._factor = factor.to(self.dtype)
        self._centre = self.mean(base)
        self._room = KEPT_UP_TO // (ROWS_AT_ONCE * self.count * self.dtype.itemsize)

    def mean(self, base: Array) -> Tensor:
        """(k,) under the base weights (n,)."""
        share = torch.as_tensor(base / base.sum(), dtype=self.dtype)
        return add([share[places] @ rows for places, rows in self.parts()])

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        """Places and functions (b, k) of one part after the other, which may lie where the part before lay."""
        for number, start in enumerate(range(0, self.total, ROWS_AT_ONCE)):
            places = slice(start, min(start + ROWS_AT_ONCE, self.total))
            if number < len(self._kept):
                yield places, self._kept[number]
                continue
            rows = self._compute(self._design[places])
            if number < self._room:
                self._kept.append(rows.clone())
            yield places, rows

    def _compute(self, design: Array) -> Tensor:
        rows = apply_functions(design, self._functions, self.dtype, self._buffer[: len(design)])
        return rows.mul_(self._varies).mul_(self._factor).sub_(self._centre)


class TableStatistic(DirectBlocks):
    """The dependence of a table's columns; takes and gives float64, whatever it computes in.

    groups: (m,) the group of each block; blocks of one group are not compared.
    """

    def __init__(self, rows: FunctionRows, related: Tensor, groups: Tensor) -> None:
        super().__init__(torch.empty(0), related, "covariance")
        self.rows, self.groups = rows, groups

    def value_and_gradient(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """w: (n,).   Returns D, a scalar, and ∂D/∂w (n,)."""
        value, gradient = super().value_and_gradient(w.to(self.rows.dtype))
        return value.to(torch.float64), gradient.to(torch.float64)

    def _gather(self, a: WeightMeasure) -> tuple[Tensor, Tensor]:
        return gather_parts(((rows, places) for places, rows in self.rows.parts()), a, self.rows.count)

    def _pull(self, off: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.empty(2, self.rows.total, dtype=self.rows.dtype)
        for places, rows in self.rows.parts():
            found[0, places], found[1, places] = quadratic_forms(rows, off), rows @ vector
        return found[0], found[1]


def gather_parts(parts: Iterator[tuple[Tensor, slice]], a: WeightMeasure, count: int) -> tuple[Tensor, Tensor]:
    """μ = Uᵀv (count,) and Σ (count, count) of rows (b, k) that come in parts; their first `count` columns."""
    sigma = torch.zeros(count, count, dtype=a.v.dtype)
    means, buffer = [], None
    for rows, places in parts:
        rows = rows[:, :count]
        means.append(rows.T @ a.v[places])
        buffer = rows.new_empty(len(rows), count) if buffer is None else buffer[: len(rows)]
        sigma.addmm_(torch.mul(rows, a.d[places, None], out=buffer).T, rows)
    mean = add(means)
    return mean, sigma.sub_(torch.outer(mean, mean), alpha=a.c).mul_(a.s)


def prepare_statistic(
    design: Array, encoding: Encoding, functions: Functions, base: Array, max_correlation: float
) -> TableStatistic:
    """The dependence of the design's columns as a function of the rows' weights.   design: (n, d).

    base: (n,) sample weights: how many times each row occurs, ones without.
    max_correlation: blocks with a larger canonical correlation are taken together, see `overlap`.
    """
    rows = FunctionRows(design, functions)
    rows.scale(base, _category_factors(rows, encoding, functions, base))
    groups = _find_groups(rows, functions, base, max_correlation)
    members = torch.zeros(len(functions.phase), int(groups.max()) + 1)
    members.index_add_(1, groups, functions.members.to(members.dtype))
    return TableStatistic(rows, members @ members.T > 0, groups)


def _find_groups(rows: FunctionRows, functions: Functions, base: Array, max_correlation: float) -> Tensor:
    single = functions.members.sum(1) == 1  # they come first, so that a view suffices
    count = int(single.sum())
    measure = measure_weights(torch.as_tensor(base, dtype=rows.dtype), "covariance")
    _, sigma = gather_parts(((part, places) for places, part in rows.parts()), measure, count)
    owner = functions.members[:count].int().argmax(1)
    return group_blocks(sigma, owner, float(base.sum()), max_correlation)


def apply_functions(
    design: Array, functions: Functions, dtype: torch.dtype = torch.float64, out: Tensor | None = None
) -> Tensor:
    """All k functions of some rows, (n, k).   design: (n, d).   out: (n, k), where they are written."""
    omega, linear = functions.omega.to(dtype), functions.phase.isnan()
    phase = functions.phase.nan_to_num(0.0).to(dtype)
    rows = torch.mm(torch.from_numpy(design).to(dtype), omega, out=out)
    straight = rows[:, linear]
    rows.add_(phase).cos_().mul_(math.sqrt(2))
    rows[:, linear] = straight
    return rows


def _category_factors(rows: FunctionRows, encoding: Encoding, functions: Functions, base: Array) -> Tensor:
    """Scale one-hot blocks so that a category counts like a numeric column with its functions, whatever its size.

    Returns the factor (k,) of every function.
    """
    linear = functions.phase.isnan()
    typical = 1 + int((~linear & (functions.members.sum(1) == 1)).sum()) / max(1, _numeric_count(encoding))
    factors = torch.ones(rows.count, dtype=torch.float64)
    if all(block.categories is None for block in encoding.blocks):
        return factors
    means = rows.mean(base)
    for i, block in enumerate(encoding.blocks):
        if block.categories is None:
            continue
        own = (linear & functions.members[:, i]).nonzero().squeeze(1)
        mean = means[own]
        total = float((mean - mean.square()).sum())  # the summed variances of the one-hot columns
        if total > 0:
            factors[own] = np.sqrt(typical / total)
    return factors


def _numeric_count(encoding: Encoding) -> int:
    return sum(block.categories is None for block in encoding.blocks)


MEMORY = 10  # pairs L-BFGS keeps


@dataclass(frozen=True, kw_only=True)
class SolveSettings:
    """How far the weights may go, and when the solver stops."""

    penalty: NonNegative = 0.02  # λ·mean(w²): keeps the effective sample size up
    min_ess: Share = 0.1  # floor of the effective sample size, as a share of the rows
    max_evaluations: Count = 60
    tolerance: NonNegative = 1e-4  # stop when an iteration lowers J by less than this share

    def __post_init__(self) -> None:
        check_fields(self)


def solve_table(statistic: Statistic, base: Array, settings: SolveSettings) -> Array:
    """The factors w (n,) by which the base weights are multiplied; mean one under the base.

    base: (n,) positive; sample weights, ones without.
    """
    problem = TableProblem(statistic, torch.from_numpy(base), settings.penalty)
    if problem.start <= 0:
        return np.ones_like(base)  # one column, or constant ones: nothing depends on anything
    # `minimize` would make two numbers and a pair of every row's bounds: a quarter of what the search takes.
    found, _, _ = fmin_l_bfgs_b(
        problem,
        np.sqrt(base),
        bounds=[(0.0, None)] * len(base),
        m=MEMORY,
        factr=settings.tolerance / np.finfo(np.float64).eps,
        pgtol=0.0,
        maxfun=settings.max_evaluations,
        maxiter=settings.max_evaluations,
    )
    weights = blend_to_floor(problem.weights(found), problem.share, settings.min_ess)
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
