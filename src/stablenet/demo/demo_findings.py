"""From finished runs to the figures of the demo's page, and one sentence made from the numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from stablenet.demo.demo_runs import METHOD, REFERENCE, RULES
from stablenet.engine.run import Run
from stablenet.evaluation.evaluate import RECORDS
from stablenet.evaluation.selection import DEFAULT_RULE, select_epoch
from stablenet.files import read_lines
from stablenet.metrics import Paired, Spread, compare_pairs, summarize
from stablenet.pages import write_points

LEARNED = 0.9  # accuracy in training, with dropout on, below which a run has not learned its task
TIE = 0.0005  # a twentieth of a point: what the page rounds away


def describe_difference(paired: Paired) -> tuple[str, str]:
    """A headline, and a sentence on how much it is worth.   paired: StableNet minus ERM, as shares of right answers."""
    mean, values = paired.differences.mean, paired.differences.values
    wins, count = sum(value > 0 for value in values), len(values)
    points = f"{abs(100 * mean):.1f} points"
    interval = f"95 % interval {write_points(100 * paired.low)} to {write_points(100 * paired.high)}"
    if abs(mean) < TIE:
        return "StableNet and ERM did equally well.", f"Ahead in {wins} of {count} seeds; {interval}."
    if mean > 0:
        head = f"StableNet was right more often than ERM on the shifted target: by {points} on average."
        tail = f"It was ahead in {wins} of {count} seeds ({interval}"
    else:
        head = f"StableNet lost: it was right less often than ERM on the shifted target, by {points} on average."
        tail = f"It was ahead in {wins} of {count} seeds ({interval}"
    if paired.is_clear:
        return head, f"{tail}, which leaves out zero)."
    return head, f"{tail}): {_spell(count)} seeds cannot tell this from chance."


def write_learned(findings: Findings) -> str:
    """Whether both methods fitted their own training images by the last epoch."""
    groups = {"ERM": findings.reference, "StableNet": findings.method}
    reached = {name: [o.curves[-1]["train"]["accuracy"] for o in outcomes] for name, outcomes in groups.items()}
    told = " and ".join(f"{name} {100 * fmean(values):.1f} %" for name, values in reached.items())
    failed = [name for name, values in reached.items() if min(values) < LEARNED]
    if failed:
        return f"Accuracy in training in the last epoch: {told}. {' and '.join(failed)} did not learn in every seed."
    return f"Accuracy in training in the last epoch: {told}; every run came to fit its training images."


def _spell(count: int) -> str:
    return {2: "two", 3: "three", 4: "four", 5: "five"}.get(count, str(count))


@dataclass(frozen=True)
class Outcome:
    """One run. validation: source validation in the chosen epoch.   target: accuracy by rule.
    curves: one record per epoch.
    """

    run: Run
    method: str
    seed: int
    epoch: int
    validation: float
    target: dict[str, float]
    calibration_error: float
    curves: list[dict[str, Any]]


@dataclass(frozen=True)
class Findings:
    """Outcomes of the two methods in the order of the seeds, and what they say together."""

    reference: list[Outcome]
    method: list[Outcome]

    @property
    def seeds(self) -> list[int]:
        return [outcome.seed for outcome in self.method]

    def spread_target(self, outcomes: Sequence[Outcome], rule: str = DEFAULT_RULE) -> Spread:
        return summarize([outcome.target[rule] for outcome in outcomes])

    def spread_validation(self, outcomes: Sequence[Outcome]) -> Spread:
        return summarize([outcome.validation for outcome in outcomes])

    def compare_target(self, rule: str = DEFAULT_RULE) -> Paired:
        """Method minus reference, seed by seed."""
        ours, theirs = ([o.target[rule] for o in group] for group in (self.method, self.reference))
        return compare_pairs(ours, theirs)


def gather_findings(runs: Sequence[Run]) -> Findings:
    outcomes = [read_outcome(run) for run in runs]
    reference, method = (
        sorted((o for o in outcomes if o.method == name), key=lambda o: o.seed) for name in (REFERENCE, METHOD)
    )
    if [o.seed for o in reference] != [o.seed for o in method]:
        raise ValueError("the two methods must have the same seeds: their differences are taken seed by seed")
    return Findings(reference, method)


def read_outcome(run: Run) -> Outcome:
    """An evaluated run from its files."""
    records = run.records
    epoch = select_epoch(DEFAULT_RULE, records).epoch
    curves = [record for record in records if record["kind"] == "epoch"]
    lines = {line["rule"]: line for line in read_lines(run.path / RECORDS) if line["part"] == "test"}
    return Outcome(
        run=run,
        method=run.config.method.name,
        seed=run.config.seed,
        epoch=epoch,
        validation=next(record["validation"]["accuracy"] for record in curves if record["epoch"] == epoch),
        target={rule: lines[rule]["figures"]["accuracy"] for rule in RULES},
        calibration_error=lines[DEFAULT_RULE]["figures"]["calibration_error"],
        curves=curves,
    )
