"""The weights of earlier methods, DWR, SRDO and CRBR, each from its own objective; and the simulation of that field.

All take the design (n, d), its blocks and base weights s (n,) with mean one, and return factors w (n,), non-negative,
of mean one under s, like `solve.solve_table`.

The simulation: Y = S·β + S1·S2·S3 + ε is the same everywhere. A row stays in environment r with probability
|r|^(−5·|f(S) − sign(r)·V_b|), so V_b, the last column, rises with Y where r > 1 and falls where r < −1. A linear model
cannot represent the product, and uses V_b, which the selection correlates with it, instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from sklearn.neural_network import MLPClassifier
from torch import Tensor
from torch.nn.functional import cross_entropy

from stablenet.errors import UserError
from stablenet.long_work import count_steps
from stablenet.tabular.encode import Encoding
from stablenet.tabular.reading import Array
from stablenet.values import AtLeast, check_fields, require

ADAM_RATE = 0.01


def decorrelate_columns(design: Array, encoding: Encoding, base: Array, *, steps: int) -> Array:
    """DWR: small weighted covariances of all columns, W = ω².

    (2000/p)·Σ_i √(Σ_j cov_W(x_i, x_j)²) + ½·(ΣW − n)² + 5e-5·ΣW², j over the columns of other blocks: the published
    code's objective and constants, its Adam rate, by default its number of steps.
    """
    x, s = _as_tensor(design), _as_tensor(base)
    n, p = x.shape
    apart = _different_blocks(encoding)

    def loss(root: Tensor) -> Tensor:
        weight = root.square()
        share = s * weight / n
        mean = x.T @ share
        covariance = ((x.T * share) @ x - torch.outer(mean, mean)) * apart
        # 1e-10: the root's slope at zero.
        spread = (covariance.square().sum(1) + 1e-10).sqrt().sum()
        total = (s * weight).sum()
        return 2000 / p * spread + 0.5 * (total - n).square() + 5e-5 * (s * weight.square()).sum()

    root = torch.ones(n, requires_grad=True)
    _descend(lambda: loss(root), [root], steps)
    return _normalise(root.detach().square(), s)


def estimate_density_ratio(
    design: Array, encoding: Encoding, base: Array, *, seed: int, hidden: tuple[int, ...], steps: int
) -> Array:
    """SRDO: the density of the table with shuffled columns over that of the table, from a classifier.

    Every block is permuted on its own (drawn with the base weights when they differ), a network distinguishes the
    shuffled rows from the real ones, and w = P(shuffled)/P(real) at the real rows.
    """
    generator = np.random.default_rng(seed)
    n = len(design)
    drawn = design.copy()
    for block in encoding.blocks:
        equal = bool((base == base[0]).all())
        rows = generator.permutation(n) if equal else generator.choice(n, n, p=base / base.sum())
        drawn[:, block.columns] = design[rows, block.columns]
    classifier = MLPClassifier(hidden_layer_sizes=hidden, max_iter=steps, random_state=seed)
    real = np.repeat([1, 0], n)
    classifier.fit(np.concatenate([design, drawn]), real, sample_weight=np.concatenate([base, np.ones(n)]))
    probability = classifier.predict_proba(design)[:, 1].clip(1e-6, 1 - 1e-6)
    return _normalise(_as_tensor(1 / probability - 1), _as_tensor(base))


def balance_treatments(
    design: Array, encoding: Encoding, base: Array, classes: Array, *, steps: int, balance: float, decay: float
) -> Array:
    """CRBR: weights that balance the other columns between the rows above and below each column's median, learned
    together with a logistic regression.

    Σ_i W_i·CE_i/n + balance·Σ_j ‖mean of x₋ⱼ over the treated − over the controls‖² + decay·mean(W²) + (ΣW/n − 1)².
    classes: (n,) integer labels.
    """
    x, s, y = _as_tensor(design), _as_tensor(base), torch.from_numpy(classes)
    n, p = x.shape
    treated = (x > x.quantile(0.5, 0)).to(x.dtype)  # (n, p); for a rare one-hot column, the rows that have it
    apart = _different_blocks(encoding)
    root = torch.ones(n, requires_grad=True)
    model = torch.nn.Linear(p, int(y.max()) + 1)
    with torch.no_grad():  # a start that no generator's state can change
        model.weight.zero_()
        model.bias.zero_()

    def loss() -> Tensor:
        weight = s * root.square()
        fit = (weight * cross_entropy(model(x), y, reduction="none")).sum() / n
        gap = _weighted_means(x, treated, weight) - _weighted_means(x, 1 - treated, weight)
        mass = (weight.sum() / n - 1).square() + decay * (s * root.pow(4)).sum() / n
        return fit + balance * (gap * apart).square().sum() / p + mass

    _descend(loss, [root, *model.parameters()], steps)
    return _normalise(root.detach().square(), s)


def _weighted_means(x: Tensor, group: Tensor, weight: Tensor) -> Tensor:
    """Means of x's columns in each group.   x, group: (n, p).   Returns (p groups, p columns); 0 for empty groups."""
    share = group * weight[:, None]
    return (share.T @ x) / share.sum(0).clamp_min(1e-6)[:, None]


def _different_blocks(encoding: Encoding) -> Tensor:
    owner = torch.repeat_interleave(torch.tensor([block.width for block in encoding.blocks]))
    return (owner[:, None] != owner).to(torch.float32)


def _descend(loss: Callable[[], Tensor], parameters: list[Tensor], steps: int) -> None:
    optimiser = torch.optim.Adam(parameters, lr=ADAM_RATE)
    for _ in count_steps(steps, "fitting the weights"):
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()


def _as_tensor(values: Array) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float32)


def _normalise(weight: Tensor, base: Tensor) -> Array:
    """Mean one under the base; all ones where nothing is left."""
    total = float((base * weight).sum() / base.sum())
    found = weight / total if total > 0 else torch.ones_like(weight)
    return np.asarray(found.numpy(), dtype=np.float64)


RATES = (-3.0, -2.0, -1.7, -1.5, -1.3, 1.3, 1.5, 1.7, 2.0, 3.0)
TRAINING_RATE = 1.7
COEFFICIENTS = (1 / 3, -2 / 3, 1.0, -1 / 3, 2 / 3, -1.0)  # of S, repeated
NOISE_VARIANCE = 0.3
ROWS_PER_DRAW = 20_000

Structure = Literal["independent", "stable-to-unstable", "unstable-to-stable"]


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """columns: p, half of them stable.   misses: the term a linear model misses, "product" or "exponential"."""

    columns: Annotated[int, AtLeast(6)] = 10
    structure: Structure = "independent"
    misses: Literal["product", "exponential"] = "product"

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.columns % 2 == 0, "columns", "an even number", self.columns)

    @property
    def stable(self) -> int:
        return self.columns // 2

    def draw(self, rows: int, rate: float, generator: np.random.Generator) -> tuple[Array, Array]:
        """An environment: X (rows, columns), the stable columns first, and y (rows,)."""
        if abs(rate) <= 1:
            raise UserError(f"rate is {rate}: a bias rate is below −1 or above 1")
        parts: list[Array] = []
        while sum(map(len, parts)) < rows:
            s, v = self._draw_columns(generator)
            outcome = self.outcome(s)
            distance = np.abs(outcome - np.sign(rate) * v[:, -1])
            kept = generator.random(len(s)) < abs(rate) ** (-5 * distance)
            noise = generator.normal(0, NOISE_VARIANCE**0.5, len(s))
            parts.append(np.column_stack([s, v, outcome + noise])[kept])
        table = np.concatenate(parts)[:rows]
        return table[:, :-1], table[:, -1]

    def outcome(self, s: Array) -> Array:
        """f(S) (n,), without noise.   s: (n, columns/2)."""
        product = s[:, 0] * s[:, 1] * s[:, 2]
        linear = s @ np.resize(COEFFICIENTS, s.shape[1])
        return np.asarray(linear + (product if self.misses == "product" else np.exp(product)))

    def _draw_columns(self, generator: np.random.Generator) -> tuple[Array, Array]:
        shape = (ROWS_PER_DRAW, self.stable)
        if self.structure == "unstable-to-stable":
            v = generator.normal(size=shape)
            return 0.2 * v + 0.8 * np.roll(v, -1, 1) + generator.normal(size=shape), v
        z = generator.normal(size=(ROWS_PER_DRAW, self.stable + 1))
        s = 0.8 * z[:, :-1] + 0.2 * z[:, 1:]
        v = generator.normal(size=shape)
        return s, v if self.structure == "independent" else 0.8 * s + 0.2 * np.roll(s, -1, 1) + v
