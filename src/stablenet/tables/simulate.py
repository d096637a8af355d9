"""The field's selection-bias simulation: stable columns S, unstable columns V, environments by biased selection.

Y = S·β + S1·S2·S3 + ε is the same everywhere. A row stays in environment r with probability
|r|^(−5·|f(S) − sign(r)·V_b|), so V_b, the last column, rises with Y where r > 1 and falls where r < −1. A linear model
misses the product, and V_b, which the selection ties to it, steps in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from stablenet.errors import UserError
from stablenet.tables.encode import Array

RATES = (-3.0, -2.0, -1.7, -1.5, -1.3, 1.3, 1.5, 1.7, 2.0, 3.0)
TRAINING_RATE = 1.7
COEFFICIENTS = (1 / 3, -2 / 3, 1.0, -1 / 3, 2 / 3, -1.0)  # of S, repeated
NOISE_VARIANCE = 0.3
ROWS_PER_DRAW = 20_000

Structure = Literal["independent", "stable-to-unstable", "unstable-to-stable"]


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """columns: p, half of them stable.   misses: the term a linear model misses, "product" or "exponential"."""

    columns: int = 10
    structure: Structure = "independent"
    misses: Literal["product", "exponential"] = "product"

    def __post_init__(self) -> None:
        if self.columns < 6 or self.columns % 2:
            raise UserError(f"columns is {self.columns}: expected an even number, 6 or more")

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
