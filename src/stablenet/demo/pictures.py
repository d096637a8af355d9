"""Samples as small pictures that lie inside the page."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stablenet.data.pipeline import Samples
from stablenet.demo.weights import SampleWeights
from stablenet.engine.runs import Run
from stablenet.page import encode_image


@dataclass(frozen=True)
class Picture:
    """uri: the image itself, as PNG.   label: its class.   caption: what stands below.   agrees: see SampleWeights."""

    uri: str
    label: str
    caption: str = ""
    agrees: bool = True


def show_part(run: Run, part: str, per_class: int) -> list[list[Picture]]:
    """For every class, some samples on the background that most of its samples have in this part."""
    samples = run.open_part(part)
    shown = []
    for number, label in enumerate(run.classes):
        own = samples.y == number
        main = int(torch.bincount(samples.domain[own]).argmax())
        chosen = (own & (samples.domain == main)).nonzero().squeeze(1)[:per_class]
        shown.append([_draw(samples, position, label) for position in chosen.tolist()])
    return shown


def show_extremes(found: SampleWeights, classes: tuple[str, ...], count: int) -> tuple[list[Picture], list[Picture]]:
    """The most raised and the most lowered samples, each with its weight."""
    order = found.weights.argsort(descending=True, stable=True).tolist()
    sides = []
    for positions in (order[:count], order[::-1][:count]):
        sides.append(
            [
                _draw(
                    found.samples,
                    position,
                    classes[int(found.samples.y[position])],
                    f"×{float(found.weights[position]):.2g}",
                    bool(found.agrees[position]),
                )
                for position in positions
            ]
        )
    return sides[0], sides[1]


def _draw(samples: Samples, position: int, label: str, caption: str = "", agrees: bool = True) -> Picture:
    image = samples.pixels.read(samples.row[position : position + 1])[0]
    return Picture(encode_image(image), label, caption, agrees)
