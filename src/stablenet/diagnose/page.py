"""A diagnosis as one page that needs no other file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stablenet._version import __version__
from stablenet.diagnose import charts
from stablenet.diagnose.findings import Diagnosis
from stablenet.diagnose.verdict import say_share
from stablenet.page import encode_image, render, write_text

CLASSES_SHOWN = 10
CARRIERS = 7  # samples shown of a class, on each side
EXTREMES = 24
EXTREME_ROWS = 12  # of a table, which take a line each
CONTEXTS_SHOWN = 8


@dataclass(frozen=True)
class Sample:
    """picture: a data URI, or "" for a row of a table.   text: a row's own, or the label.   weight: as ×1.3."""

    picture: str
    text: str
    weight: str


@dataclass(frozen=True)
class Carriers:
    """A class with the samples that look most and least like it."""

    name: str
    share: float
    p_value: float
    typical: list[Sample]
    contrary: list[Sample]


def write_page(diagnosis: Diagnosis, path: Path, command: str = "", seconds: float = 0.0) -> None:
    """Render the page into `path`; pictures are inside it, nothing is loaded from elsewhere."""
    from markupsafe import Markup

    drawn = {
        "classes": Markup(charts.draw_classes(diagnosis)),
        "trades": Markup(charts.draw_trades(diagnosis)),
        "weights": Markup(charts.draw_weights(diagnosis.weights)),
    }
    count = EXTREMES if diagnosis.thumbnails is not None else EXTREME_ROWS
    order = diagnosis.weights.argsort(descending=True, stable=True)
    values: dict[str, Any] = {
        "d": diagnosis,
        "charts": drawn,
        "firm": diagnosis.trades[-1],
        "carriers": [gather_class(diagnosis, k) for k in charts.order_classes(diagnosis)[:CLASSES_SHOWN]],
        "raised": [show(diagnosis, i) for i in order[:count].tolist()],
        "lowered": [show(diagnosis, i) for i in order.flip(0)[:count].tolist()],
        "contexts_shown": CONTEXTS_SHOWN,
        "version": __version__,
        "command": command,
        "seconds": seconds,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    filters = {"percent": say_share, "p": lambda p: f"{p:.3f}" if p >= 0.0005 else "< 0.001"}
    write_text(path, render("diagnose/page.html.jinja", values, filters))


def gather_class(diagnosis: Diagnosis, k: int) -> Carriers:
    """The samples of class k whose features fit it best, and those that fit it least."""
    told = diagnosis.whole
    own = (diagnosis.y == k).nonzero().squeeze(1)
    order = own[told.scores[own, k].argsort(descending=True, stable=True)]
    count = min(CARRIERS, len(order) // 2)
    best, least = order[:count], order.flip(0)[:count]
    return Carriers(
        diagnosis.classes[k], told.classes[k], told.class_p[k], *(_show_all(diagnosis, s) for s in (best, least))
    )


def _show_all(diagnosis: Diagnosis, positions: Tensor) -> list[Sample]:
    return [show(diagnosis, position) for position in positions.tolist()]


def show(diagnosis: Diagnosis, position: int) -> Sample:
    """One sample with its weight."""
    label = diagnosis.classes[int(diagnosis.y[position])]
    weight = f"×{float(diagnosis.weights[position]):.2g}"
    if diagnosis.thumbnails is None:
        return Sample("", f"{label}: {diagnosis.rows[position]}", weight)
    return Sample(encode_image(diagnosis.thumbnails[position].to(torch.uint8)), label, weight)
