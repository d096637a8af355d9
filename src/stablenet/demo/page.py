"""The findings as one page that needs no other file."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stablenet._version import __version__
from stablenet.demo import charts
from stablenet.demo.findings import Findings
from stablenet.demo.pictures import show_extremes, show_part
from stablenet.demo.train import RECIPE, DemoSettings, write_commands
from stablenet.demo.verdict import sign, write_learned, write_verdict
from stablenet.demo.weights import SampleWeights
from stablenet.engine.recipes import find_recipe
from stablenet.page import render, write_text

_PER_CLASS = 3
_EXTREMES = 21


def write_page(findings: Findings, weights: Sequence[SampleWeights], settings: DemoSettings, seconds: float) -> Path:
    """weights: of the method's runs, in the order of the seeds.   seconds: the whole demo took."""
    from markupsafe import Markup

    drawn = {name: Markup(svg) for name, svg in _draw_charts(findings, weights).items()}
    values = {**_gather(findings, weights, settings, seconds), "charts": drawn}
    filters = {"percent": lambda share: f"{100 * share:.1f}", "points": sign}
    write_text(settings.page, render("demo/page.html.jinja", values, filters))
    return settings.page


def _draw_charts(findings: Findings, weights: Sequence[SampleWeights]) -> dict[str, str]:
    return {
        "accuracies": charts.draw_accuracies(findings),
        "weights": charts.draw_weights(weights),
        "dependence": charts.draw_dependence([found.dependence for found in weights]),
        "training": charts.draw_learning(findings, "train", "accuracy"),
        "validation": charts.draw_learning(findings, "validation", "accuracy"),
    }


def _gather(
    findings: Findings, weights: Sequence[SampleWeights], settings: DemoSettings, seconds: float
) -> dict[str, Any]:
    first = findings.method[0].run
    paired = findings.compare_target()
    headline, worth = write_verdict(paired)
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
