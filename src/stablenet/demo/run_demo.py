"""The whole demo: train, gather the findings, write one self-contained page with charts."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from stablenet._version import __version__
from stablenet.data.loader import PartSamples
from stablenet.demo.demo_runs import (
    RECIPE,
    DemoSettings,
    Findings,
    Outcome,
    Report,
    describe_difference,
    gather_findings,
    make_configs,
    train_all,
    write_commands,
    write_learned,
)
from stablenet.engine.config import find_recipe
from stablenet.engine.run import Run
from stablenet.errors import UserError
from stablenet.metrics import Spread, effective_share
from stablenet.pages import (
    WIDTH,
    Curve,
    Drawing,
    Picture,
    Scale,
    choose_ticks,
    draw_curves,
    draw_percent_grid,
    draw_weight_histogram,
    make_picture,
    render,
    write_points,
    write_text,
)
from stablenet.weighting import recommended
from stablenet.weighting.dataset import dataset_settings


def show_part(run: Run, part: str, per_class: int) -> list[list[Picture]]:
    """For every class, some samples on the background that most of its samples have in this part."""
    samples = run.open_part(part)
    shown = []
    for number, label in enumerate(run.classes):
        own = samples.y == number
        main = int(torch.bincount(samples.domain[own]).argmax())
        chosen = (own & (samples.domain == main)).nonzero().squeeze(1)[:per_class]
        shown.append([_draw(samples, position, f"digit {label}") for position in chosen.tolist()])
    return shown


def show_extremes(found: SampleWeights, classes: tuple[str, ...], count: int) -> tuple[list[Picture], list[Picture]]:
    """The most raised and the most lowered samples, each with its weight; those off their main background marked."""
    order = found.weights.argsort(descending=True, stable=True).tolist()
    sides = []
    for positions in (order[:count], order[::-1][:count]):
        sides.append(
            [
                _draw(
                    found.samples,
                    position,
                    f"digit {classes[int(found.samples.y[position])]}",
                    f"×{float(found.weights[position]):.2g}",
                    not found.agrees[position],
                )
                for position in positions
            ]
        )
    return sides[0], sides[1]


def _draw(samples: PartSamples, position: int, text: str, caption: str = "", marked: bool = False) -> Picture:
    image = samples.pixels.read(samples.row[position : position + 1])[0]
    return make_picture(image, text, caption, marked)


_LEFT, _RIGHT = 74, 86  # room for names and for figures
_ROW = 26
_NAMES = {"erm": "ERM", "stablenet": "StableNet"}


def draw_accuracies(findings: Findings) -> str:
    """A dot per seed, pairs joined; a bar from the mean minus to the mean plus one sample standard deviation."""
    groups = [
        ("held-out images of the training domains", findings.spread_validation),
        ("target: the same digits on swapped backgrounds", findings.spread_target),
    ]
    spreads = [[spread(outcomes) for outcomes in (findings.reference, findings.method)] for _, spread in groups]
    lowest = min(min(spread.values) for pair in spreads for spread in pair)
    scale = Scale(max(0.0, math.floor(10 * lowest - 0.3) / 10), 1.0, _LEFT, WIDTH - _RIGHT)
    drawing = Drawing(WIDTH, 2 * (2 * _ROW + 34) + 26, "Accuracy of both methods on validation and target")
    bottom = drawing.height - 20
    for tick in choose_ticks(scale.low, scale.high):
        drawing.line(scale(tick), 22, scale(tick), bottom, "grid")
        drawing.text(scale(tick), bottom + 14, f"{100 * tick:.0f} %", "tick", "middle")
    for number, ((name, _), pair) in enumerate(zip(groups, spreads, strict=True)):
        top = number * (2 * _ROW + 34)
        drawing.text(0, top + 14, name, "heading")
        _draw_pair(drawing, scale, pair, findings.seeds, top + 36)
    return drawing.render()


def _draw_pair(drawing: Drawing, scale: Scale, pair: Sequence[Spread], seeds: Sequence[int], top: float) -> None:
    for first, second in zip(pair[0].values, pair[1].values, strict=True):
        drawing.line(scale(first), top, scale(second), top + _ROW, "link")
    for row, (method, spread) in enumerate(zip(_NAMES, pair, strict=True)):
        y = top + row * _ROW
        low, high = spread.mean - spread.deviation, min(spread.mean + spread.deviation, 1.0)
        drawing.bar(scale(max(low, scale.low)), y - 4, scale(high) - scale(max(low, scale.low)), 8, f"band {method}")
        drawing.line(scale(spread.mean), y - 9, scale(spread.mean), y + 9, f"mean {method}")
        for seed, value in zip(seeds, spread.values, strict=True):
            drawing.dot(scale(value), y, 4, f"dot {method}", f"seed {seed}: {100 * value:.1f} %")
        drawing.text(0, y + 4, _NAMES[method], "name")
        drawing.text(WIDTH, y + 4, f"{100 * spread.mean:.1f} ± {100 * spread.deviation:.1f}", "figure", "end")


def draw_weights_by_background(found: Sequence[SampleWeights]) -> str:
    """Distribution of the weights over all seeds, for samples on their class's main background and for the others."""
    return draw_weight_histogram(
        {
            "agree": [float(w) for part in found for w in part.weights[part.agrees]],
            "disagree": [float(w) for part in found for w in part.weights[~part.agrees]],
        }
    )


def draw_change(pairs: Sequence[tuple[float, float]]) -> str:
    """Share explained by the label, with samples alike and under the weights: a line for every seed and their mean."""
    drawing = Drawing(WIDTH, 196, "Dependence with samples alike and under the weights")
    left, right, up = 110.0, WIDTH - 90.0, Scale(0, 105 * max(max(pair) for pair in pairs), 160, 10)
    draw_percent_grid(drawing, up)
    for before, after in pairs:
        drawing.path([(left, up(100 * before)), (right, up(100 * after))], "thin stablenet")
    middle = [(x, up(100 * fmean(values))) for x, values in zip((left, right), zip(*pairs, strict=True), strict=True)]
    drawing.path(middle, "thick stablenet")
    for x, y in middle:
        drawing.dot(x, y, 2.5, "dot stablenet")
    drawing.text(left, 180, "samples alike", "tick", "middle")
    drawing.text(right, 180, "under the weights", "tick", "middle")
    return drawing.render()


def draw_learning(findings: Findings, part: str, name: str) -> str | None:
    """A share of every epoch for both methods, for example validation accuracy."""

    def read(outcome: Outcome) -> Curve:
        return [(record["epoch"], 100 * record[part][name]) for record in outcome.curves]

    groups = (("erm", findings.reference), ("stablenet", findings.method))
    curves = [(style, [read(outcome) for outcome in outcomes]) for style, outcomes in groups]
    return draw_curves(curves, f"{part} {name} per epoch")


@dataclass(frozen=True)
class SampleWeights:
    """weights: (n,), mean one.   agrees: (n,) bool, whether a sample has its class's dominant background.
    dependence: of the features on the label under uniform and under these weights.
    explained: share of the label's entropy that the offsets predict.
    ess: effective share of samples.   floor: the least share the settings allow.
    shares: weighted share of the dominant background, mean over classes, under uniform and under these weights.
    """

    samples: PartSamples
    weights: Tensor
    agrees: Tensor
    dependence: tuple[float, float]
    explained: float
    ess: float
    floor: float
    shares: tuple[float, float]

    @property
    def mean_agreeing(self) -> float:
        return float(self.weights[self.agrees].mean())

    @property
    def mean_disagreeing(self) -> float:
        return float(self.weights[~self.agrees].mean())


def read_sample_weights(run: Run) -> SampleWeights:
    """What entered the run's loss in its last epoch, as the run kept it."""
    samples, table = run.open_part("train"), run.weights()
    weights = torch.tensor(table["weight"].to_numpy())
    agrees = find_agreeing(run, samples)
    (solve,) = (record for record in run.records if record["kind"] == "solve")  # once, before training
    return SampleWeights(
        samples=samples,
        weights=weights,
        agrees=agrees,
        dependence=(solve["dependence_before"], solve["dependence_after"]),
        explained=solve["context_explains"],
        ess=effective_share(weights),
        floor=dataset_settings(recommended.NAME, {}).min_ess,
        shares=(
            share_dominant(torch.ones_like(weights), samples.y, agrees),
            share_dominant(weights, samples.y, agrees),
        ),
    )


def find_agreeing(run: Run, samples: PartSamples) -> Tensor:
    """(n,) bool: whether the background is the one that dominates the sample's class in training."""
    manifest = run.manifest
    named = manifest.parameters["dominant"]
    assert isinstance(named, dict)
    dominant = torch.tensor([manifest.domains.index(str(named[name])) for name in manifest.classes])
    return samples.domain == dominant[samples.y]


def share_dominant(weights: Tensor, y: Tensor, agrees: Tensor) -> float:
    """Weighted share of samples with the dominant background, mean over classes."""
    shares = [weights[(y == k) & agrees].sum() / weights[y == k].sum() for k in y.unique().tolist()]
    return float(torch.stack(shares).mean())


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
        "accuracies": draw_accuracies(findings),
        "weights": draw_weights_by_background(weights),
        "dependence": draw_change([found.dependence for found in weights]),
        "training": draw_learning(findings, "train", "accuracy"),
        "validation": draw_learning(findings, "validation", "accuracy"),
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
