"""From finished runs to the figures the page shows; nothing is trained here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stablenet.demo.train import METHOD, REFERENCE, RULES
from stablenet.engine.runs import Run
from stablenet.evaluation.evaluate import RECORDS
from stablenet.evaluation.selection import DEFAULT_RULE, select_epoch
from stablenet.files import read_lines
from stablenet.metrics import Paired, Spread, compare_pairs, summarize


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
