"""The weights and offsets a run kept: by class, by domain, and the samples they raised and lowered most.

An offset that speaks for the own label lowers a sample: the network has less to explain there. So where all weights are
even, samples are in the order of their offsets, and the lowest ones are raised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from markupsafe import Markup

from stablenet._version import __version__
from stablenet.data.contact import INK, SOURCE_COLOUR, TARGET_COLOUR, Cell, draw_grid, save_sheet
from stablenet.data.pipeline import Samples
from stablenet.engine.runs import Run
from stablenet.errors import UserError
from stablenet.evaluation.predictions import save_table
from stablenet.page import encode_image, read_text, render, write_text
from stablenet.report import maps
from stablenet.weighting import effective_sample_size

MOST_DOMAINS = 24  # on a map: those with most samples
SHEETS = (".html", ".png")


@dataclass(frozen=True)
class Extreme:
    """A sample's image and what it weighs, or its offset where all weights are even."""

    uri: str
    label: str
    domain: str
    caption: str


@dataclass(frozen=True)
class UsedTable:
    """table: of `Run.weights`.   dependence: before and after the weighting, by the run's records, where they tell."""

    classes: tuple[str, ...]
    table: pd.DataFrame
    dependence: tuple[float, float] | None

    @property
    def even(self) -> bool:
        """Whether all samples weigh the same."""
        return bool((self.table["weight"] == 1).all())

    @property
    def effective(self) -> float:
        """Effective samples, as a share of all."""
        return share_effective(self.table["weight"])

    @property
    def with_offsets(self) -> bool:
        return bool((self.table["offset"] != 0).any())

    @property
    def too_many_domains(self) -> bool:
        """Whether a map leaves some out."""
        return self.table["domain"].nunique() > MOST_DOMAINS


def read_used(run: Run) -> UsedTable:
    """What a run kept; a run without it is told."""
    return UsedTable(run.classes, run.weights(), read_dependence(run.records))


def read_dependence(records: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """Of the latest solve of the whole set, or the mean over the batches of the last epoch."""
    solves = [record for record in records if record["kind"] == "solve"]
    epochs = [record["train"] for record in records if record["kind"] == "epoch"]
    for found in (*solves[-1:], *epochs[-1:]):
        before, after = found.get("dependence_before"), found.get("dependence_after")
        if before is not None and after is not None:
            return before, after
    return None


def share_effective(weights: pd.Series[float]) -> float:
    """(Σw)² / Σw², as a share of the samples."""
    return float(effective_sample_size(torch.tensor(weights.to_numpy(np.float64)))) / len(weights)


def summarise_classes(used: UsedTable) -> pd.DataFrame:
    """A row per class: samples, effective (share of them), largest and smallest weight, mean offset and context."""
    rows = {}
    for name, own in used.table.groupby("label", sort=False):
        rows[name] = {
            "samples": len(own),
            "effective": share_effective(own["weight"]),
            "largest": float(own["weight"].max()),
            "smallest": float(own["weight"].min()),
            "offset": float(own["offset"].mean()),
            "context": float(own["context"].mean()),
        }
    return pd.DataFrame.from_dict(rows, orient="index").reindex([name for name in used.classes if name in rows])


def sort_samples(used: UsedTable, rows: pd.DataFrame | None = None) -> pd.DataFrame:
    """The rows, or some of them, from the most raised to the most lowered."""
    chosen = used.table if rows is None else rows
    if used.even:
        return chosen.sort_values(["offset", "context"], kind="stable")
    return chosen.sort_values("weight", ascending=False, kind="stable")


def share_groups(used: UsedTable, weighted: bool) -> pd.DataFrame:
    """The share of every domain (row) in each class (column), by weight or by number."""
    groups = used.table.astype({"weight": "float64"}).groupby(["domain", "label"])["weight"]
    frame = (groups.sum() if weighted else groups.count()).unstack("label")
    return _arrange_groups(used, frame / frame.sum())


def mean_offsets(used: UsedTable) -> pd.DataFrame:
    """The mean offset in every domain (row) and class (column)."""
    return _arrange_groups(used, used.table.groupby(["domain", "label"])["offset"].mean().unstack("label"))


def _arrange_groups(used: UsedTable, frame: pd.DataFrame) -> pd.DataFrame:
    """Classes in their own order, and no more domains than a map can show."""
    shown = used.table["domain"].value_counts().index[:MOST_DOMAINS]
    columns = [name for name in used.classes if name in frame]
    return frame.loc[[name for name in frame.index if name in shown], columns]


def draw_charts(used: UsedTable) -> dict[str, Markup]:
    """spread: of the weights, or of the offsets where weights are even.   groups: by domain and class."""
    if used.even:
        spread = maps.draw_offsets(used.table["offset"].tolist())
        groups = maps.draw_groups({"mean offset": mean_offsets(used)}, lambda value: f"{value:.2f}")
    else:
        spread = maps.draw_weights(used.table["weight"].tolist())
        shares = {"by number": share_groups(used, weighted=False), "by weight": share_groups(used, weighted=True)}
        groups = maps.draw_groups(shares, lambda value: f"{100 * value:.0f} %")
    return {"spread": Markup(spread), "groups": Markup(groups)}


class Album:
    """Images of a run's training samples."""

    def __init__(self, used: UsedTable, samples: Samples) -> None:
        self._used, self._samples = used, samples
        # Images that could not be read when the source was prepared have a row, but no pixels.
        self._rows = used.table.iloc[samples.index.numpy()].reset_index(drop=True)

    def extremes(self, count: int, label: str | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The samples raised most and those lowered most, most extreme first; none is in both.   label: of a class."""
        rows = self._rows if label is None else self._rows[self._rows["label"] == label]
        order = sort_samples(self._used, rows)
        count = min(count, len(order) // 2)
        return order[:count], order[::-1][:count]

    def show(self, rows: pd.DataFrame) -> list[Extreme]:
        return [
            Extreme(encode_image(torch.from_numpy(image)), str(row.label), str(row.domain), caption)
            for row, image, caption in zip(rows.itertuples(), self.read(rows), self.caption(rows), strict=True)
        ]

    def read(self, rows: pd.DataFrame) -> list[Any]:
        """Pixels (H, W, 3) uint8 of rows that `extremes` gave."""
        positions = torch.tensor(rows.index.tolist(), dtype=torch.int64)
        return list(self._samples.pixels.read(self._samples.row[positions]).numpy()) if len(rows) else []

    def caption(self, rows: pd.DataFrame) -> list[str]:
        if self._used.even:
            return [f"{offset:+.2f}".replace("-", "−") for offset in rows["offset"]]
        return [f"×{weight:.2g}" for weight in rows["weight"]]


def write_csv(used: UsedTable, path: Path) -> None:
    """All samples, from the most raised to the most lowered."""
    if path.suffix.lower() != ".csv":
        raise UserError(f"the table is written as .csv, got {path.name!r}")
    save_table(sort_samples(used), path)


def check_sheet(path: Path) -> None:
    if path.suffix.lower() not in SHEETS:
        raise UserError(f"the contact sheet is written as .html or .png, got {path.name!r}")


def write_sheet(run: Run, used: UsedTable, path: Path, per_class: int, root: Path | None = None) -> None:
    """A contact sheet of the samples raised and lowered most, per class: a page or a picture, as the ending says."""
    check_sheet(path)
    album = Album(used, run.open_part("train", root))
    found = {name: album.extremes(per_class, name) for name in summarise_classes(used).index}
    if path.suffix.lower() == ".png":
        _write_picture(run, used, album, found, path, per_class)
    else:
        _write_page(run, used, album, found, path)


def name_sides(used: UsedTable) -> tuple[str, str]:
    if used.even:
        return "context speaks most against the label", "context speaks most for the label"
    return "raised most", "lowered most"


Found = Mapping[str, tuple[pd.DataFrame, pd.DataFrame]]


def _write_picture(run: Run, used: UsedTable, album: Album, found: Found, path: Path, per_class: int) -> None:
    colours, sides = (SOURCE_COLOUR, TARGET_COLOUR), name_sides(used)
    cells = [
        [_make_cell(album, rows, colour) for rows, colour in zip(pair, colours, strict=True)] for pair in found.values()
    ]
    what = "offset of the own class" if used.even else "weight"
    legend = [(f"below: {what}, from the most extreme", INK)]
    save_sheet(draw_grid(run.path.name, sides, tuple(found), cells, per_class, legend), path)


def _make_cell(album: Album, rows: pd.DataFrame, colour: str) -> Cell:
    captions = album.caption(rows)
    return Cell(album.read(rows), [colour] * len(rows), f"{captions[0]} … {captions[-1]}" if captions else "")


def _write_page(run: Run, used: UsedTable, album: Album, found: Found, path: Path) -> None:
    values = {
        "run": run,
        "used": used,
        "version": __version__,
        "style": Markup(read_text("report/style.css")),
        "charts": draw_charts(used),
        "sides": name_sides(used),
        "summary": list(summarise_classes(used).itertuples()),
        "classes": {name: [album.show(rows) for rows in pair] for name, pair in found.items()},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, render("report/weights.html.jinja", values))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
