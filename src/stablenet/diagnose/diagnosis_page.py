"""A diagnosis as one page that needs no other file: the pictures are the argument, charts and figures follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stablenet._version import __version__
from stablenet.diagnose.next_steps import Asked, ClassRow, Side, describe_class, order_classes, suggest_steps
from stablenet.diagnose.verdict import Diagnosis, say_share, say_weight
from stablenet.pages import (
    WIDTH,
    Drawing,
    Picture,
    Scale,
    choose_ticks,
    draw_weight_histogram,
    make_picture,
    render,
    shorten,
    write_text,
)

MOST_CLASSES = 24  # of the chart
_ROW = 30
_NAMES, _FIGURES = 104, 92  # room for names and for figures
_LETTERS = 14  # of a name


def draw_classes(diagnosis: Diagnosis) -> str:
    """For every class how well the features predict it, and permuted labels; each bar has its figure."""
    order = order_classes(diagnosis)[:MOST_CLASSES]
    parts = [("whole", diagnosis.whole), *([("border", diagnosis.border)] if diagnosis.border else [])]
    most = max(max(found.raw) for _, found in parts)
    drawing = Drawing(WIDTH, len(order) * _ROW + 40, "How well the features predict every class")
    across = Scale(0, max(0.2, 1.05 * most), _NAMES, WIDTH - _FIGURES)
    bottom = len(order) * _ROW + 4
    for tick in choose_ticks(0, across.high):
        drawing.line(across(tick), 0, across(tick), bottom, "grid")
        drawing.text(across(tick), bottom + 14, f"{100 * tick:.0f} %", "tick", "middle")
    height = (_ROW - 6) / len(parts)
    for row, k in enumerate(order):
        top = row * _ROW + 4
        drawing.text(0, top + _ROW / 2, shorten(diagnosis.classes[k], _LETTERS), "name")
        for place, (style, found) in enumerate(parts):
            y = top + place * height
            drawing.bar(_NAMES, y, across(found.raw[k]) - _NAMES, height - 1, style)
            drawing.line(*_tick(across(found.permuted), y, height), "permuted")
            label = style if diagnosis.border else "columns"
            drawing.text(WIDTH - _FIGURES + 8, y + height / 2 + 3, f"{label} {100 * found.raw[k]:.0f} %", "tick")
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
        drawing.dot(across(x), up(y), 4.5, "dot stablenet", f"{hint}: {100 * y:.0f} % left, {100 * x:.0f} % effective")
    drawing.text(across(1) - 12, up(1) + 3, "equal weights", "tick", "end")
    drawing.text(across(0.5), 214, "effective samples (across), dependence left (up)", "tick", "middle")
    return drawing.render()


CLASSES_SHOWN = 12
PICTURES = 5  # of a class, on each side
ROWS = 5  # of a table in their place
EXTREMES = 10
EXTREME_ROWS = 12  # of a table, which take a line each
CONTEXTS_SHOWN = 8


@dataclass(frozen=True)
class Shown:
    """Samples of one side, as pictures or, of a table, as (weight, text)."""

    side: Side
    pictures: Sequence[Picture]
    lines: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class ShownClass:
    """A class with its usual samples and its exceptions."""

    row: ClassRow
    sides: tuple[Shown, Shown]


def write_page(
    diagnosis: Diagnosis, path: Path, command: str = "", seconds: float = 0.0, asked: Asked | None = None
) -> None:
    """Render the page into `path`; pictures are inside it, nothing is loaded from elsewhere.

    asked: what was diagnosed, for the commands at the end; None: there are none.
    """
    from markupsafe import Markup

    drawn = {
        "classes": Markup(draw_classes(diagnosis)),
        "trades": Markup(draw_trades(diagnosis)),
        "weights": Markup(draw_weight_histogram({"weights": diagnosis.weights.tolist()})),
    }
    rows = [describe_class(diagnosis, k) for k in order_classes(diagnosis)]
    order = diagnosis.weights.argsort(descending=True, stable=True)
    values: dict[str, Any] = {
        "d": diagnosis,
        "lead": write_lead(diagnosis),
        "charts": drawn,
        "full": diagnosis.trades[-1],
        "rows": rows,
        "classes": [ShownClass(row, _show_sides(diagnosis, row)) for row in rows[:CLASSES_SHOWN]],
        "raised": _show(diagnosis, order, EXTREMES, EXTREME_ROWS),
        "lowered": _show(diagnosis, order.flip(0), EXTREMES, EXTREME_ROWS),
        "contexts_shown": CONTEXTS_SHOWN,
        "most_classes": MOST_CLASSES,
        "steps": suggest_steps(asked, diagnosis.verdict.level) if asked else [],
        "asked": asked,
        "version": __version__,
        "command": command,
        "seconds": seconds,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    filters = {"percent": say_share, "p": lambda p: f"{p:.3f}" if p >= 0.0005 else "< 0.001"}
    write_text(path, render("diagnose/page.html.jinja", values, filters))


def write_lead(diagnosis: Diagnosis) -> str:
    """What was found, in two sentences of words and shares."""
    border, context = diagnosis.border, diagnosis.context
    if border is None:
        said = f"All columns together predict {say_share(diagnosis.whole.share)} of the label."
    else:
        said = f"The border of an image, where the object rarely is, predicts {say_share(border.share)} of its label"
        said += f"; the whole image {say_share(diagnosis.whole.share)}."
    if context is None or not context.minority > 0:
        return said
    weight = "" if diagnosis.trades[-1].is_even else f" and {say_weight(context.minority, context.minority_weight)}"
    return f"{said} {say_share(context.minority)} of the samples lie outside their class's usual context{weight}."


def _show_sides(diagnosis: Diagnosis, row: ClassRow) -> tuple[Shown, Shown]:
    usual, exceptions = (
        Shown(side, *_show(diagnosis, side.positions, PICTURES, ROWS)) for side in (row.usual, row.exceptions)
    )
    return usual, exceptions


def _show(
    diagnosis: Diagnosis, positions: Tensor, pictures: int, lines: int
) -> tuple[list[Picture], list[tuple[str, str]]]:
    """The first of some samples: pictures of images, lines of a table."""
    if diagnosis.show is None:
        return [], [show_line(diagnosis, position) for position in positions[:lines].tolist()]
    return [show_picture(diagnosis, position) for position in positions[:pictures].tolist()], []


def show_picture(diagnosis: Diagnosis, position: int) -> Picture:
    """One image with its weight; its context and its name where it is enlarged."""
    assert diagnosis.show is not None
    image = torch.from_numpy(diagnosis.show(position).copy())
    label, context = diagnosis.classes[int(diagnosis.y[position])], diagnosis.context
    where = f"{label} in {context.names[int(context.where[position])]}" if context else label
    return make_picture(image, f"{where}, {diagnosis.ids[position]}", write_weight(diagnosis, position))


def show_line(diagnosis: Diagnosis, position: int) -> tuple[str, str]:
    """One row of a table: its weight, and its label with its first columns."""
    label = diagnosis.classes[int(diagnosis.y[position])]
    return write_weight(diagnosis, position), f"{label}: {diagnosis.rows[position]}"


def write_weight(diagnosis: Diagnosis, position: int) -> str:
    """A weight as ×1.3; where all are even, the context score."""
    if diagnosis.trades[-1].is_even:
        return f"{float(diagnosis.scores[position]):+.2f}".replace("-", "−")
    return f"×{float(diagnosis.weights[position]):.2g}"
