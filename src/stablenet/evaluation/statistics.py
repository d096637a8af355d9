"""Mean, sample standard deviation and paired differences over a few seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """deviation: of the sample (n − 1)."""

    values: tuple[float, ...]
    mean: float
    deviation: float


@dataclass(frozen=True)
class Paired:
    """Differences seed by seed. low, high: the 95 % interval of their mean by Student's t.

    It takes the differences for draws of one normal distribution, and is wide for three of them.
    """

    differences: Spread
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0


def summarize(values: Sequence[float]) -> Spread:
    """Two values or more."""
    return Spread(tuple(values), fmean(values), stdev(values))


def compare_pairs(ours: Sequence[float], theirs: Sequence[float]) -> Paired:
    """Ours minus theirs, pair by pair."""
    from scipy.stats import t

    differences = summarize([a - b for a, b in zip(ours, theirs, strict=True)])
    count = len(differences.values)
    reach = float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * differences.deviation / math.sqrt(count)
    return Paired(differences, differences.mean - reach, differences.mean + reach)
