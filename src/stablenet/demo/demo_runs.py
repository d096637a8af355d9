"""The demo's training runs, for two methods with the same budget, and the figures and the sentence made from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from stablenet.bench.executors import Event, LocalExecutor, Place
from stablenet.bench.worker import RunOrder, speeds_path
from stablenet.engine.config import RunConfig, assemble_config
from stablenet.engine.identity import identify, read_contents
from stablenet.engine.run import Run, list_runs, load_run
from stablenet.engine.run_folder import FINISHED
from stablenet.errors import UserError
from stablenet.evaluation.evaluate import DEFAULT_RULE, RECORDS, select_epoch
from stablenet.files import read_lines
from stablenet.metrics import Paired, Spread, compare_pairs, summarize
from stablenet.pages import write_points
from stablenet.values import Count, Seed, check_fields

RECIPE = "embedded-dr0.9"
REFERENCE, METHOD = "erm", "stablenet"
RULES = (DEFAULT_RULE, "last")
Report = Callable[[str, int], None]  # a run's name, epochs done


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """seeds: each draws its own split, initial weights and sample order.   epochs: None takes the recipe's 30.
    output: the folder for the page and the runs.   workers: processes at once, of one thread each; None: one a core.
    """

    output: Path = Path("demo")
    seeds: tuple[Seed, ...] = (0, 1, 2)
    epochs: Count | None = None
    workers: Count | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if len(set(self.seeds)) < 2 or len(set(self.seeds)) != len(self.seeds):
            raise UserError(f"the demo needs two different seeds or more, to show a spread; got {list(self.seeds)}")

    @property
    def runs(self) -> Path:
        return self.output / "runs"

    @property
    def page(self) -> Path:
        return self.output / "index.html"

    def count_workers(self, tasks: int) -> int:
        return min(tasks, self.workers or os.cpu_count() or 1)


def list_settings(method: str, seed: int, epochs: int | None) -> list[str]:
    """The settings of a run beside its recipe, as `stablenet train --set` takes them."""
    chosen = [f"method.name={method}", f"seed={seed}"]
    return chosen if epochs is None else [*chosen, f"train.epochs={epochs}"]


def make_configs(settings: DemoSettings) -> list[RunConfig]:
    """One config per seed and method, pairs of a seed side by side."""
    return [
        assemble_config(RECIPE, None, list_settings(method, seed, settings.epochs))
        for seed in settings.seeds
        for method in (REFERENCE, METHOD)
    ]


def write_commands(settings: DemoSettings) -> list[str]:
    """The command lines that train the same runs one by one."""
    commands = []
    for method in (REFERENCE, METHOD):
        said = list_settings(method, 0, settings.epochs)[2:]
        words = ["stablenet train", f"--recipe {RECIPE}", f"--method {method}", "--seed 0"]
        commands.append(" ".join([*words, *(f"--set {text}" for text in said), "--device cpu"]))
    return commands


def train_all(configs: list[RunConfig], runs: Path, workers: int, report: Report) -> list[Run]:
    """Train and evaluate every config; finished runs are reused, interrupted ones resumed.

    Each of the processes has one thread: results do not depend on their number. A run that fails stops the others.
    """
    there = [find_finished(config, runs) for config in configs]
    for run in there:
        if run is not None:
            report(run.config.name, run.config.train.epochs)
    orders = [make_order(config, runs) for config, run in zip(configs, there, strict=True) if run is None]
    executor = LocalExecutor([Place("cpu", None, workers)], runs / ".bench" / "logs")
    executor.run(orders, lambda event: _pass_on(event, report))
    trained = iter(orders)
    return [run if run is not None else load_run(next(trained).folder) for run in there]


def make_order(config: RunConfig, runs: Path) -> RunOrder:
    """The run where the engine would put it by itself."""
    identity = identify(config, read_contents(config, None))
    folder = runs / config.name_folder(identity.hash)
    return RunOrder(
        name=config.name,
        config=config.plain(),
        series=identity.series,
        folder=str(folder.absolute()),
        rules=RULES,
        speeds=str(speeds_path(runs).absolute()),
        device="cpu",
        threads=1,
    )


def _pass_on(event: Event, report: Report) -> None:
    """Report epochs; a run without a result ends the demo, which needs them all."""
    name = event.order.name
    if event.kind == "epoch":
        report(name, event.epoch)
    elif event.kind == "finished":
        report(name, event.order.config["train"]["epochs"])
    elif event.kind in ("failed", "lost"):
        verb = "failed" if event.kind == "failed" else "was lost"
        raise UserError(f"the run {name} {verb}: {event.reason}")


def find_finished(config: RunConfig, runs: Path) -> Run | None:
    """The run of this config if it has been trained and evaluated."""
    for run in list_runs(runs):
        if run.config == config and run.status["state"] == FINISHED:
            evaluated = {line["rule"] for line in read_lines(run.path / RECORDS)}
            return run if evaluated >= set(RULES) else None
    return None


LEARNED = 0.9  # accuracy in training, with dropout on, below which a run has not learned its task
TIE = 0.0005  # a twentieth of a point: what the page rounds away


def describe_difference(paired: Paired) -> tuple[str, str]:
    """A headline, and a sentence on its support.   paired: StableNet minus ERM, as shares of correct predictions."""
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
        return head, f"{tail}, which excludes zero)."
    return head, f"{tail}): {_spell(count)} seeds cannot distinguish this from chance."


def write_learned(findings: Findings) -> str:
    """Whether both methods fitted their own training images by the last epoch."""
    groups = {"ERM": findings.reference, "StableNet": findings.method}
    reached = {name: [o.curves[-1]["train"]["accuracy"] for o in outcomes] for name, outcomes in groups.items()}
    shares = " and ".join(f"{name} {100 * fmean(values):.1f} %" for name, values in reached.items())
    failed = [name for name, values in reached.items() if min(values) < LEARNED]
    if failed:
        return f"Accuracy in training in the last epoch: {shares}. {' and '.join(failed)} did not learn in every seed."
    return f"Accuracy in training in the last epoch: {shares}; every run fitted its training images."


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
    """Outcomes of the two methods in the order of the seeds, and their comparison."""

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
