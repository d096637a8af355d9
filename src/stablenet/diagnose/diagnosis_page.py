"""What to do after a diagnosis, and its page: images first, then charts and figures.

In order: the samples that break the correlation, commands that can be copied, and the page. A sample breaks it if its
features suggest another label (`Diagnosis.scores`), like those of a cat on the beach where most cats are indoors. On
pets pasted over places whose contexts were hidden from the diagnosis, 95 % of them typical of their class, this order
puts an atypical image before a typical one in 94 of 100 pairs with hand-made features and in 99 with a ResNet-50; the
order of the weights does in 89 and 98.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from stablenet._version import __version__
from stablenet.diagnose.verdict import Diagnosis, say_share, say_weight
from stablenet.evaluation.predict import save_table
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

RAREST = 0.1  # share of a class that is shown as its exceptions where no context is named
MOST_NAMED = 3  # other contexts of a class that are listed by name


@dataclass(frozen=True)
class Side:
    """Some samples of a class: a description, their shares of the class by number and by weight, the clearest first."""

    name: str
    share: float
    weight: float
    positions: Tensor
    detail: str = ""

    @property
    def words(self) -> str:
        """ "5 % of the class, 25 % of its weight" """
        return f"{say_share(self.share)} of the class, {say_share(self.weight)} of its weight"


@dataclass(frozen=True)
class ClassRow:
    """A class: its usual samples and its exceptions.   share: of the class that the features predict."""

    name: str
    usual: Side
    exceptions: Side
    share: float
    p_value: float


def order_classes(diagnosis: Diagnosis) -> list[int]:
    """Positions of the classes, best predicted first."""
    found = diagnosis.border or diagnosis.whole
    return sorted(range(len(diagnosis.classes)), key=lambda k: -found.classes[k])


def describe_class(diagnosis: Diagnosis, k: int) -> ClassRow:
    """By the context that was named, or else by how strongly the features suggest the class."""
    own = (diagnosis.y == k).nonzero().squeeze(1)
    own = own[diagnosis.scores[own].argsort(descending=True, stable=True)]
    usual, exceptions = _by_context(diagnosis, k, own) if diagnosis.context else _by_score(diagnosis, k, own)
    return ClassRow(diagnosis.classes[k], usual, exceptions, diagnosis.whole.classes[k], diagnosis.whole.class_p[k])


def _by_score(diagnosis: Diagnosis, k: int, own: Tensor) -> tuple[Side, Side]:
    rare = max(1, round(RAREST * len(own)))
    name, samples = diagnosis.classes[k], "images" if diagnosis.show else "rows"
    usual, exceptions = own[:-rare], own[-rare:].flip(0)
    return (
        _weigh(diagnosis, own, usual, f"most {samples} of {name}", "most typical first"),
        _weigh(diagnosis, own, exceptions, f"{samples} of {name} that look least like the others"),
    )


def _by_context(diagnosis: Diagnosis, k: int, own: Tensor) -> tuple[Side, Side]:
    context = diagnosis.context
    assert context is not None
    name, shares = diagnosis.classes[k], context.before[:, k]
    main = int(shares.argmax())
    others = [c for c in np.argsort(-shares, kind="stable") if c != main and shares[c] > 0]
    usual, exceptions = own[context.where[own] == main], own[context.where[own] != main].flip(0)
    place = context.names[others[0]] if len(others) == 1 else "other contexts"
    listed = [f"{context.names[c]} {say_share(shares[c])}" for c in others[:MOST_NAMED]]
    more = len(others) - MOST_NAMED
    detail = "" if len(others) < 2 else ", ".join([*listed, *([f"{more} more"] if more > 0 else [])])
    return (
        _weigh(diagnosis, own, usual, f"{name} in {context.names[main]}"),
        _weigh(diagnosis, own, exceptions, f"{name} in {place}" if others else f"{name} elsewhere", detail),
    )


def _weigh(diagnosis: Diagnosis, own: Tensor, chosen: Tensor, name: str, detail: str = "") -> Side:
    weights = diagnosis.weights.double()
    weight = float(weights[chosen].sum() / weights[own].sum())
    return Side(name, len(chosen) / len(own), weight, chosen, detail)


def rank_samples(diagnosis: Diagnosis) -> pd.DataFrame:
    """All samples, those first that break the correlation most.

    rank, id, path, label, domain, outside: whether the domain is not the main one of its label; both empty where no
    context was named.   context_score: how strongly the features suggest the sample's own label, by a linear fit, about
    −1 to 1.
    weight: mean one.
    """
    context = diagnosis.context
    order = diagnosis.scores.argsort(stable=True).tolist()
    weights = diagnosis.weights / diagnosis.weights.mean()
    return pd.DataFrame(
        {
            "rank": np.arange(1, len(order) + 1),
            "id": [diagnosis.ids[i] for i in order],
            "path": [diagnosis.paths[i] if diagnosis.paths else "" for i in order],
            "label": [diagnosis.classes[int(diagnosis.y[i])] for i in order],
            "domain": [context.names[int(context.where[i])] if context else "" for i in order],
            "outside": ["" if context is None else "yes" if context.off[i] else "no" for i in order],
            "context_score": np.round(diagnosis.scores[torch.tensor(order)].numpy(), 4),
            "weight": np.round(weights[torch.tensor(order)].numpy(), 4),
        }
    )


def write_exceptions(diagnosis: Diagnosis, path: Path) -> None:
    """The ranked list as CSV or Parquet, by the path's ending."""
    save_table(rank_samples(diagnosis), path)


Kind = Literal["own images", "source", "run", "table"]


@dataclass(frozen=True)
class Step:
    """A command, and what it is for."""

    why: str
    command: str


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What was diagnosed: its kind, and the data as they were named.

    options: of `stablenet diagnose`, which say how the data are read.   table: the same for `stablenet table fit`.
    division: the options that say which part of the images was diagnosed.
    csv: where the ranked list was written, "" for nowhere.
    """

    kind: Kind
    data: str
    options: tuple[str, ...] = ()
    table: tuple[str, ...] = ()
    division: tuple[str, ...] = ()
    csv: str = ""


def suggest_steps(asked: Asked, level: str) -> list[Step]:
    """The command to run next comes first; the list of exceptions is offered if it has not been written yet."""
    words = ["diagnose", asked.data, *asked.options, *asked.division, "--csv", "exceptions.csv"]
    listing = _make("List the samples that break the correlation, to relabel them or to collect more of them:", words)
    steps = [_suggest_training(asked)]
    if not asked.csv:
        steps.insert(0 if level == "unlikely" else 1, listing)
    return steps


def _suggest_training(asked: Asked) -> Step:
    match asked.kind:
        case "table":
            return _make("Fit it with equal and with learned weights:", ["table", "fit", asked.data, *asked.table])
        case "run":
            return _make("See the weights and offsets that entered the run's loss:", ["weights", asked.data])
        case "source":
            words = ["list", "recipes", "--match", f"{asked.data}*"]
            return _make("Choose a recipe of these data, and train ERM and StableNet with it:", words)
        case "own images":
            words = ["try", asked.data, *asked.options]
            return _make("Train plainly and with StableNet, and see what is gained:", words)


def _make(why: str, words: list[str]) -> Step:
    return Step(why, shlex.join(["stablenet", *words]))


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
