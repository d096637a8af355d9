"""A method beside the reference, seed by seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from stablenet.metrics import compare_pairs

Verdict = Literal["win", "tie", "loss"]


@dataclass(frozen=True, kw_only=True)
class Versus:
    """A method's accuracy minus the reference's, in points, for the seeds both have.

    low, high: 95 % interval of the mean difference by Student's t; None for one seed.
    verdict: win or loss where the interval leaves out zero, else a tie; None for one seed.
    """

    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    mean: float
    deviation: float | None
    low: float | None
    high: float | None
    verdict: Verdict | None

    @property
    def seeds_won(self) -> int:
        return sum(value > 0 for value in self.differences)

    @property
    def seeds_tied(self) -> int:
        return sum(value == 0 for value in self.differences)

    @property
    def seeds_lost(self) -> int:
        return sum(value < 0 for value in self.differences)


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Columns of a row by verdict, averages left out; unknown: columns that cannot be compared yet.
    seeds_…: single seeds of all these columns.
    """

    win: int = 0
    tie: int = 0
    loss: int = 0
    unknown: int = 0
    seeds_won: int = 0
    seeds_tied: int = 0
    seeds_lost: int = 0


def compare_seeds(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Versus | None:
    """seed -> percent, of a method and of the reference; None where they have no seed in common."""
    seeds = tuple(sorted(set(ours) & set(theirs)))
    if not seeds:
        return None
    if len(seeds) == 1:
        difference = ours[seeds[0]] - theirs[seeds[0]]
        return Versus(
            seeds=seeds,
            differences=(difference,),
            mean=difference,
            deviation=None,
            low=None,
            high=None,
            verdict=None,
        )
    paired = compare_pairs([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds])
    verdict: Verdict = "tie" if not paired.is_clear else "win" if paired.low > 0 else "loss"
    return Versus(
        seeds=seeds,
        differences=paired.differences.values,
        mean=paired.differences.mean,
        deviation=paired.differences.deviation,
        low=paired.low,
        high=paired.high,
        verdict=verdict,
    )


def tally(comparisons: Iterable[Versus | None]) -> Tally:
    """comparisons: one per column that holds runs."""
    there = list(comparisons)
    verdicts = [None if versus is None else versus.verdict for versus in there]
    known = [versus for versus in there if versus is not None]
    return Tally(
        win=verdicts.count("win"),
        tie=verdicts.count("tie"),
        loss=verdicts.count("loss"),
        unknown=verdicts.count(None),
        seeds_won=sum(versus.seeds_won for versus in known),
        seeds_tied=sum(versus.seeds_tied for versus in known),
        seeds_lost=sum(versus.seeds_lost for versus in known),
    )
