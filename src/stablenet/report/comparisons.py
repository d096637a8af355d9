"""What is gained: StableNet minus plain training in every table, over paired seeds alone, and the headline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from stablenet.bench import BenchResult, Row, TableColumn
from stablenet.bench.results import RunRef, Standing, Versus, compare_seeds
from stablenet.bench.results import tally as count_verdicts
from stablenet.errors import write_count
from stablenet.pages import write_points
from stablenet.report.gather import Gathered, name_column

METHOD = "stablenet"


@dataclass(frozen=True)
class Gain:
    """One comparison.   split: the column, or what the mean is over.   columns: those whose runs are compared.
    ours, theirs: percent by seed, of the seeds that both have.   runs: behind them, by row, then by seed.
    """

    table: str
    split: str
    row: Row
    reference: Row
    columns: tuple[TableColumn, ...]
    ours: Mapping[int, float]
    theirs: Mapping[int, float]
    versus: Versus
    runs: Mapping[str, Mapping[int, tuple[RunRef, ...]]]

    @property
    def interval(self) -> str:
        """The 95 % interval in words, or why there is none."""
        if len(self.versus.seeds) == 1:
            return "one seed: no interval"
        return write_interval(self.versus) or "the same in every seed: no interval"


def write_interval(versus: Versus) -> str:
    """In words; nothing where it cannot be estimated."""
    ends = versus.interval
    return "" if ends is None else f"95 % interval {write_points(ends[0])} to {write_points(ends[1])}"


def find_gains(results: Sequence[BenchResult]) -> list[Gain]:
    """One comparison per table in which StableNet and plain training have seeds in common."""
    return [gain for result in results if (gain := find_gain(result)) is not None]


def find_gain(result: BenchResult) -> Gain | None:
    """Over the widest mean of the table, or where it has none over all splits that both have; None without a pair."""
    row, reference = choose_row(result), next((row for row in result.rows if row.id == result.reference), None)
    if row is None or reference is None:
        return None
    means = [c for c in result.columns if c.mean_of and result.cell(row.id, c.id).versus is not None]
    if means:
        column = max(means, key=lambda c: len(c.mean_of))
        columns = tuple(c for c in result.columns if c.id in column.mean_of)
        return _compare(result, row, reference, columns, f"{name_column(column)} of {len(columns)} splits")
    compared = [c for c in result.columns if not c.mean_of and result.cell(row.id, c.id).versus is not None]
    compared = [c for c in compared if c.metric == "accuracy"] or compared  # figures of groups are not averaged with it
    whole = [c for c in compared if not c.domain]  # others show a part of the target alone
    columns = tuple(whole or compared)
    if len(columns) > 1:
        gain = _compare(result, row, reference, columns, f"mean of {len(columns)} splits")
        if gain is not None:
            return gain
        columns = columns[:1]  # no seed has all of them
    return _compare(result, row, reference, columns, name_column(columns[0])) if columns else None


def choose_row(result: BenchResult) -> Row | None:
    """The StableNet row with most to compare, in columns and then in seeds, whatever its results; else None."""
    rows = [row for row in result.rows if row.method == METHOD and any(_count_pairs(result, row))]
    return max(rows, key=lambda row: _count_pairs(result, row), default=None)


def _count_pairs(result: BenchResult, row: Row) -> tuple[int, int]:
    """Columns that have a pair, and pairs in all of them."""
    cells = (result.cell(row.id, column.id).versus for column in result.columns if not column.mean_of)
    seeds = [len(versus.seeds) for versus in cells if versus is not None]
    return len(seeds), sum(seeds)


def _compare(
    result: BenchResult, row: Row, reference: Row, columns: tuple[TableColumn, ...], split: str
) -> Gain | None:
    ours, theirs = ({c.id: result.cell(r.id, c.id).by_seed for c in columns} for r in (row, reference))
    seeds = set.intersection(*(set(found) for side in (ours, theirs) for found in side.values()))
    means = [{seed: fmean(found[seed] for found in side.values()) for seed in sorted(seeds)} for side in (ours, theirs)]
    versus = compare_seeds(*means)
    if versus is None:
        return None
    runs = {r.id: _find_runs(result, r, columns, sorted(seeds)) for r in (reference, row)}
    return Gain(result.table.title, split, row, reference, columns, means[0], means[1], versus, runs)


def _find_runs(
    result: BenchResult, row: Row, columns: Sequence[TableColumn], seeds: Sequence[int]
) -> dict[int, tuple[RunRef, ...]]:
    """Columns that show one domain each of the same run name it once."""
    cells = [result.cell(row.id, column.id) for column in columns]
    found = {}
    for seed in seeds:
        refs = [ref for cell in cells for value in cell.values if value.seed == seed for ref in value.runs]
        found[seed] = tuple({ref.path: ref for ref in refs}.values())
    return found


def write_mean(values: Mapping[int, float]) -> str:
    """ "80.1 ± 4.9", without a spread where there is one seed."""
    spread = f" ± {stdev(values.values()):.1f}" if len(values) > 1 else ""
    return f"{fmean(values.values()):.1f}{spread}"


def count_images(gain: Gain, figures: Mapping[Path, Mapping[str, Any] | None]) -> int | None:
    """Test images of a seed, the fewest of all runs of a comparison; None where a run does not record them."""
    refs = [ref for by_seed in gain.runs.values() for found in by_seed.values() for ref in found]
    counts = [(figures.get(ref.path) or {}).get("count") for ref in refs]
    return min((count for count in counts if count is not None), default=None) if all(counts) else None


def write_headline(gathered: Gathered, gains: Sequence[Gain], images: int | None = None) -> tuple[str, str]:
    """A headline on StableNet compared with plain training, and sentences that count losses and wins alike.

    images: test images of the first comparison, None if unknown.
    """
    if not gains:
        number = len(gathered.runs)
        head = f"Results of {number} {'run' if number == 1 else 'runs'}"
        return head, "StableNet and ERM have no two seeds in common yet: nothing can be compared."
    head = write_gain(gains[0], images) if len(gains) == 1 else write_counts(gains)
    return head, count_all(gathered.results)


def write_gain(gain: Gain, images: int | None = None) -> str:
    """The one comparison there is."""
    versus, other = gain.versus, gain.reference.title
    seeds = write_count(len(versus.seeds), "seed") + (f", {write_count(images, 'test image')}" if images else "")
    amount, rest = f"{abs(versus.mean):.1f} points", f"({gain.interval}, {seeds})"
    if versus.verdict is None or (images is not None and versus.verdict != "tie" and not versus.is_enough(images)):
        return f"StableNet {write_points(versus.mean)} points from {other} with {seeds}: too little for a verdict"
    if versus.verdict == "win":
        return f"StableNet gains {amount} over {other} {rest}"
    if versus.verdict == "loss":
        return f"StableNet loses {amount} against {other} {rest}"
    return f"No clear difference: StableNet is {write_points(versus.mean)} points from {other} {rest}"


def write_counts(gains: Sequence[Gain]) -> str:
    """Of several tables, each by its widest mean."""
    return f"StableNet against plain training in {len(gains)} tables: {_count([gain.versus for gain in gains])}"


def count_all(results: Sequence[BenchResult]) -> str:
    """Wins, losses and ties over single splits and means over splits alike."""
    rows = [(result, row) for result in results if (row := choose_row(result)) is not None]
    names = {False: ("single split", "single splits"), True: ("mean over splits", "means over splits")}
    said = []
    for is_mean, (one, many) in names.items():
        found = [
            versus
            for result, row in rows
            for column in result.columns
            if column.metric == "accuracy"
            and bool(column.mean_of) == is_mean
            and (versus := result.cell(row.id, column.id).versus) is not None
        ]
        if found:
            said.append(f"Of {len(found)} {one if len(found) == 1 else many}: {_count(found)}.")
    said.append("Ahead or behind: the 95 % interval of the differences, seed by seed, excludes zero.")
    return " ".join(said)


def _count(comparisons: Sequence[Versus]) -> str:
    counted = count_verdicts(comparisons)
    said = f"ahead in {counted.win}, behind in {counted.loss}, no clear difference in {counted.tie}"
    return f"{said}, one seed in {counted.unknown}" if counted.unknown else said


def name_standing(verdict: Standing | None) -> str:
    """The style of a gain: good, bad or soft."""
    return {"win": "good", "loss": "bad"}.get(verdict or "", "soft")
