"""A closer look at some runs: where their networks look, and the weights and offsets they kept.

An offset in favour of a sample's own label lowers the sample: the network has less to explain there. So if all weights
are equal, samples are ordered by their offsets, and those with the lowest ones count as raised.
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
from stablenet.algorithms.stablenet import read_dependence
from stablenet.bench import BenchResult, RunRef, TableColumn
from stablenet.data.contact import INK, SOURCE_COLOUR, TARGET_COLOUR, SheetCell, draw_grid, save_sheet
from stablenet.data.loader import PartSamples
from stablenet.engine.run import Run, load_run
from stablenet.engine.run_folder import FINISHED
from stablenet.errors import UserError
from stablenet.evaluation.predict import save_table
from stablenet.metrics import effective_share
from stablenet.pages import Picture, draw_weight_histogram, make_picture, render, write_text
from stablenet.report import charts
from stablenet.report.gather import ReportSettings, shown_rows
from stablenet.saliency import Gallery, SaliencySettings, choose_subjects, look

MOST_RUNS = 6  # side by side
_SETTINGS = SaliencySettings(samples=25)  # half as many as `stablenet saliency` takes: a page has many maps
_EXTREMES = 14  # images of the highest and of the lowest weights


@dataclass(frozen=True)
class WeighedRun:
    """What a run kept of its weights.   missing: why there is nothing to show."""

    name: str
    used: UsedTable | None
    raised: tuple[Picture, ...] = ()
    lowered: tuple[Picture, ...] = ()
    missing: str = ""


@dataclass(frozen=True)
class Inside:
    """The results for a column of a table, for the networks of one seed.   failure: why nothing could be shown."""

    table: str
    column: TableColumn
    seed: int
    names: tuple[str, ...]
    gallery: Gallery | None
    weighed: tuple[WeighedRun, ...]
    failure: str = ""


def look_inside(results: Sequence[BenchResult], settings: ReportSettings) -> list[Inside]:
    """One split per table, the hardest that has runs, for as many tables as the settings say."""
    chosen = [found for result in results if (found := choose_group(result)) is not None]
    return [_look(result, column, refs, settings) for result, column, refs in chosen[: settings.panels]]


Group = tuple[BenchResult, TableColumn, dict[str, RunRef]]


def choose_group(result: BenchResult) -> Group | None:
    """The finished runs of one seed by row's title: of the column and seed with most rows, of equals the last column
    (columns go from easy to hard) and the first seed.
    """
    best: Group | None = None
    for column in result.columns:
        if column.mean_of:
            continue
        by_seed: dict[int, dict[str, RunRef]] = {}
        for row in shown_rows(result):
            for value in result.cell(row.id, column.id).values:
                if value.runs[0].state == FINISHED:
                    by_seed.setdefault(value.seed, {})[row.title] = value.runs[0]
        for seed in sorted(by_seed, reverse=True):
            if best is None or len(by_seed[seed]) >= len(best[2]):
                best = (result, column, by_seed[seed])
    return best


def _look(result: BenchResult, column: TableColumn, refs: dict[str, RunRef], settings: ReportSettings) -> Inside:
    refs = dict(list(refs.items())[:MOST_RUNS])
    runs = {name: load_run(ref.path) for name, ref in refs.items()}
    seed = next(iter(refs.values())).seed
    try:
        subjects = choose_subjects(next(iter(runs.values())), settings.images, root=settings.root)
        gallery = look(list(runs.values()), subjects, _SETTINGS, rule=settings.rule, device=settings.device)
        weighed = tuple(_read_weights(name, run, settings.root) for name, run in runs.items() if run.keeps_weights)
    except UserError as error:
        return Inside(result.table.name, column, seed, tuple(runs), None, (), str(error))
    return Inside(result.table.name, column, seed, tuple(runs), gallery, weighed)


def _read_weights(name: str, run: Run, root: Path | None) -> WeighedRun:
    try:
        used = read_used(run)
    except UserError as error:
        return WeighedRun(name, None, missing=str(error))
    album = Album(used, run.open_part("train", root))
    raised, lowered = (tuple(album.show(rows)) for rows in album.extremes(_EXTREMES))
    return WeighedRun(name, used, raised, lowered)


MOST_DOMAINS = 24  # on a map: those with most samples
SHEETS = (".html", ".png")


@dataclass(frozen=True)
class UsedTable:
    """table: of `Run.weights`.   dependence: before and after the weighting, by the run's records; None without it."""

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
        return effective_share(self.table["weight"].to_numpy(np.float64))

    @property
    def with_offsets(self) -> bool:
        return bool((self.table["offset"] != 0).any())

    @property
    def too_many_domains(self) -> bool:
        """Whether a map leaves some out."""
        return self.table["domain"].nunique() > MOST_DOMAINS


def read_used(run: Run) -> UsedTable:
    """The weights that a run kept; an error if it has none."""
    return UsedTable(run.classes, run.weights(), read_dependence(run.records))


def summarise_classes(used: UsedTable) -> pd.DataFrame:
    """A row per class: samples, effective (share of them), largest and smallest weight, mean offset and context."""
    rows = {}
    for name, own in used.table.groupby("label", sort=False):
        rows[name] = {
            "samples": len(own),
            "effective": effective_share(own["weight"].to_numpy(np.float64)),
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
        spread = charts.draw_offsets(used.table["offset"].tolist())
        groups = charts.draw_groups({"mean offset": mean_offsets(used)}, lambda value: f"{value:.2f}")
    else:
        spread = draw_weight_histogram({"weights": used.table["weight"].tolist()})
        shares = {"by number": share_groups(used, weighted=False), "by weight": share_groups(used, weighted=True)}
        groups = charts.draw_groups(shares, lambda value: f"{100 * value:.0f} %")
    return {"spread": Markup(spread), "groups": Markup(groups)}


class Album:
    """Images of a run's training samples."""

    def __init__(self, used: UsedTable, samples: PartSamples) -> None:
        self._used, self._samples = used, samples
        # Images that could not be read when the source was prepared have a row, but no pixels.
        self._rows = used.table.iloc[samples.index.numpy()].reset_index(drop=True)

    def extremes(self, count: int, label: str | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The samples raised most and those lowered most, most extreme first; none is in both.   label: of a class.

        Raised is above one, lowered below. If all weights are equal: where the context contradicts the label, and where
        it predicts it.
        """
        rows = self._rows if label is None else self._rows[self._rows["label"] == label]
        order = sort_samples(self._used, rows)
        if self._used.even:
            count = min(count, len(order) // 2)
            return order[:count], order[::-1][:count]
        return order[order["weight"] > 1][:count], order[order["weight"] < 1][::-1][:count]

    def show(self, rows: pd.DataFrame) -> list[Picture]:
        """Each with its weight, or with its offset if all weights are equal."""
        return [
            make_picture(torch.from_numpy(image), f"{row.label}, {row.domain}", caption)
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


def write_samples(used: UsedTable, path: Path) -> None:
    """All samples, from the most raised to the most lowered."""
    if path.suffix.lower() != ".csv":
        raise UserError(f"the table is written as .csv, got {path.name!r}")
    save_table(sort_samples(used), path)


def check_sheet(path: Path) -> None:
    if path.suffix.lower() not in SHEETS:
        raise UserError(f"the contact sheet is written as .html or .png, got {path.name!r}")


def write_sheet(run: Run, used: UsedTable, path: Path, per_class: int, root: Path | None = None) -> None:
    """A contact sheet of the samples raised and lowered most, per class: a page or an image, by the file's ending."""
    check_sheet(path)
    album = Album(used, run.open_part("train", root))
    found = {name: album.extremes(per_class, name) for name in summarise_classes(used).index}
    if path.suffix.lower() == ".png":
        _write_picture(run, used, album, found, path, per_class)
    else:
        _write_page(run, used, album, found, path)


def name_sides(used: UsedTable) -> tuple[str, str]:
    if used.even:
        return "context contradicts the label most", "context predicts the label most"
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


def _make_cell(album: Album, rows: pd.DataFrame, colour: str) -> SheetCell:
    captions = album.caption(rows)
    return SheetCell(album.read(rows), [colour] * len(rows), f"{captions[0]} … {captions[-1]}" if captions else "")


def _write_page(run: Run, used: UsedTable, album: Album, found: Found, path: Path) -> None:
    values = {
        "run": run,
        "used": used,
        "version": __version__,
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
