"""The whole demo: train, gather the findings, write one page that needs no other file."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stablenet._version import __version__
from stablenet.demo import demo_charts
from stablenet.demo.demo_charts import SampleWeights, read_sample_weights, show_extremes, show_part
from stablenet.demo.demo_findings import Findings, describe_difference, gather_findings, write_learned
from stablenet.demo.demo_runs import RECIPE, DemoSettings, Report, make_configs, train_all, write_commands
from stablenet.engine.config import find_recipe
from stablenet.errors import UserError
from stablenet.pages import render, write_points, write_text

_PER_CLASS = 3
_EXTREMES = 12


def write_page(findings: Findings, weights: Sequence[SampleWeights], settings: DemoSettings, seconds: float) -> Path:
    """weights: of the method's runs, in the order of the seeds.   seconds: the whole demo took."""
    from markupsafe import Markup

    drawn = {name: Markup(svg or "") for name, svg in _draw_charts(findings, weights).items()}
    values = {**_gather(findings, weights, settings, seconds), "charts": drawn}
    filters = {"percent": lambda share: f"{100 * share:.1f}", "points": lambda share: write_points(100 * share)}
    write_text(settings.page, render("demo/page.html.jinja", values, filters))
    return settings.page


def _draw_charts(findings: Findings, weights: Sequence[SampleWeights]) -> dict[str, str | None]:
    return {
        "accuracies": demo_charts.draw_accuracies(findings),
        "weights": demo_charts.draw_weights_by_background(weights),
        "dependence": demo_charts.draw_change([found.dependence for found in weights]),
        "training": demo_charts.draw_learning(findings, "train", "accuracy"),
        "validation": demo_charts.draw_learning(findings, "validation", "accuracy"),
    }


def _gather(
    findings: Findings, weights: Sequence[SampleWeights], settings: DemoSettings, seconds: float
) -> dict[str, Any]:
    first = findings.method[0].run
    paired = findings.compare_target()
    headline, worth = describe_difference(paired)
    raised, lowered = show_extremes(weights[0], first.classes, _EXTREMES)
    start = next(record for record in first.records if record["kind"] == "start")
    return {
        "version": __version__,
        "headline": headline,
        "worth": worth,
        "paired": paired,
        "findings": findings,
        "rules": ("source-validation", "last"),
        "seeds": findings.seeds,
        "first_seed": findings.seeds[0],
        "weights": weights,
        "floor": weights[0].floor,
        "training": show_part(first, "train", _PER_CLASS),
        "target": show_part(first, "test", _PER_CLASS),
        "classes": first.classes,
        "raised": raised,
        "lowered": lowered,
        "sizes": {
            "train": start["train"],
            "validation": start["validation"],
            "test": len(first.manifest.part("test")),
            "parameters": start["parameters"],
        },
        "config": first.config,
        "learned": write_learned(findings),
        "recipe": find_recipe(RECIPE),
        "commands": write_commands(settings),
        "seconds": seconds,
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }


@dataclass(frozen=True)
class Demo:
    """What came out, and where the page is."""

    findings: Findings
    page: Path
    seconds: float


def run_demo(settings: DemoSettings, report: Report = lambda name, epoch: None) -> Demo:
    """Runs that finished before are reused; `report` is called with a run's name and the number of its epochs done."""
    start = time.monotonic()
    try:
        settings.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {settings.output}: {error.strerror}; choose another --output") from error
    configs = make_configs(settings)
    runs = train_all(configs, settings.runs, settings.count_workers(len(configs)), report)
    findings = gather_findings(runs)
    weights = [read_sample_weights(outcome.run) for outcome in findings.method]
    seconds = time.monotonic() - start
    return Demo(findings, write_page(findings, weights, settings, seconds), seconds)
