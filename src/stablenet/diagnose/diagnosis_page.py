"""A diagnosis as one page that needs no other file, with its charts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stablenet._version import __version__
from stablenet.diagnose.verdict import Diagnosis, say_share
from stablenet.pages import (
    WIDTH,
    Drawing,
    Scale,
    choose_ticks,
    draw_weight_histogram,
    encode_image,
    render,
    shorten,
    write_text,
)

MOST_CLASSES = 24
_ROW = 24
_NAMES, _FIGURES = 104, 46  # room for names and for figures
_LETTERS = 14  # of a name


def order_classes(diagnosis: Diagnosis) -> list[int]:
    """Positions of the classes, best predicted first."""
    found = diagnosis.border or diagnosis.whole
    return sorted(range(len(diagnosis.classes)), key=lambda k: -found.classes[k])[:MOST_CLASSES]


def draw_classes(diagnosis: Diagnosis) -> str:
    """For every class how well the features predict it, and how well they predict permuted labels."""
    order = order_classes(diagnosis)
    parts = [("whole", diagnosis.whole), *([("border", diagnosis.border)] if diagnosis.border else [])]
    most = max(max(found.raw) for _, found in parts)
    drawing = Drawing(WIDTH, len(order) * _ROW + 40, "How well the features predict every class")
    across = Scale(0, max(0.2, 1.05 * most), _NAMES, WIDTH - _FIGURES)
    bottom = len(order) * _ROW + 4
    for tick in choose_ticks(0, across.high):
        drawing.line(across(tick), 0, across(tick), bottom, "grid")
        drawing.text(across(tick), bottom + 14, f"{100 * tick:.0f} %", "tick", "middle")
    height = (_ROW - 8) / len(parts)
    for row, k in enumerate(order):
        top = row * _ROW + 4
        drawing.text(0, top + 12, shorten(diagnosis.classes[k], _LETTERS), "name")
        for place, (style, found) in enumerate(parts):
            drawing.bar(_NAMES, top + place * height, across(found.raw[k]) - _NAMES, height - 1, style)
            drawing.line(*_tick(across(found.permuted), top + place * height, height), "permuted")
        drawing.text(WIDTH, top + 12, f"{100 * parts[-1][1].raw[k]:.0f} %", "figure", "end")
    drawing.text((_NAMES + WIDTH - _FIGURES) / 2, bottom + 32, "share of the label that is predicted", "tick", "middle")
    return drawing.render()


def _tick(x: float, top: float, height: float) -> tuple[float, float, float, float]:
    return x, top - 1, x, top + height


def draw_trades(diagnosis: Diagnosis) -> str:
    """Dependence left over effective samples, from equal weights to full strength; nothing where it is unknown."""
    known = [(trade.strength, trade.ess, trade.left) for trade in diagnosis.trades if trade.left is not None]
    if not known:
        return ""
    drawing = Drawing(WIDTH, 220, "What weights remove, and what it costs")
    across, up = Scale(0, 1, 44, WIDTH - 14), Scale(0, 1, 178, 14)
    for tick in (0, 0.25, 0.5, 0.75, 1):
        drawing.line(44, up(tick), WIDTH - 14, up(tick), "grid")
        drawing.text(38, up(tick) + 4, f"{100 * tick:.0f} %", "tick", "end")
        drawing.text(across(tick), 194, f"{100 * tick:.0f} %", "tick", "middle")
    points = [(0.0, 1.0, 1.0), *known]
    drawing.path([(across(x), up(y)) for _, x, y in points], "thick stablenet")
    for strength, x, y in points:
        hint = f"strength {strength:g}" if strength else "equal weights"
        drawing.dot(across(x), up(y), 4.5, "dot stablenet", f"{hint}: {y:.0%} left, {x:.0%} effective")
    drawing.text(across(1) - 12, up(1) + 3, "equal weights", "tick", "end")
    drawing.text(across(0.5), 214, "effective samples (across), dependence left (up)", "tick", "middle")
    return drawing.render()


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
        "classes": Markup(draw_classes(diagnosis)),
        "trades": Markup(draw_trades(diagnosis)),
        "weights": Markup(draw_weight_histogram({"weights": diagnosis.weights.tolist()})),
    }
    count = EXTREMES if diagnosis.thumbnails is not None else EXTREME_ROWS
    order = diagnosis.weights.argsort(descending=True, stable=True)
    values: dict[str, Any] = {
        "d": diagnosis,
        "charts": drawn,
        "full": diagnosis.trades[-1],
        "carriers": [gather_class(diagnosis, k) for k in order_classes(diagnosis)[:CLASSES_SHOWN]],
        "raised": [show_sample(diagnosis, i) for i in order[:count].tolist()],
        "lowered": [show_sample(diagnosis, i) for i in order.flip(0)[:count].tolist()],
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
    found = diagnosis.whole
    own = (diagnosis.y == k).nonzero().squeeze(1)
    order = own[found.scores[own, k].argsort(descending=True, stable=True)]
    count = min(CARRIERS, len(order) // 2)
    best, least = order[:count], order.flip(0)[:count]
    return Carriers(
        diagnosis.classes[k], found.classes[k], found.class_p[k], *(_show_all(diagnosis, s) for s in (best, least))
    )


def _show_all(diagnosis: Diagnosis, positions: Tensor) -> list[Sample]:
    return [show_sample(diagnosis, position) for position in positions.tolist()]


def show_sample(diagnosis: Diagnosis, position: int) -> Sample:
    """One sample with its weight."""
    label = diagnosis.classes[int(diagnosis.y[position])]
    weight = f"×{float(diagnosis.weights[position]):.2g}"
    if diagnosis.thumbnails is None:
        return Sample("", f"{label}: {diagnosis.rows[position]}", weight)
    return Sample(encode_image(diagnosis.thumbnails[position].to(torch.uint8)), label, weight)
