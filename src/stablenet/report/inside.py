"""A look inside the networks of one data setting and seed: where they look, and how their samples were weighed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stablenet.bench import BenchResult, Column, RunRef
from stablenet.engine.folder import FINISHED
from stablenet.engine.runs import Run, load_run
from stablenet.errors import UserError
from stablenet.report.gather import ReportSettings, shown_rows
from stablenet.report.sample_weights import Album, Extreme, UsedTable, read_used
from stablenet.saliency import Gallery, SaliencySettings, choose_subjects, look

MOST_RUNS = 6  # side by side
_SETTINGS = SaliencySettings(samples=25)  # half as many as `stablenet saliency` takes: a page has many maps
_EXTREMES = 14  # images of the highest and of the lowest weights


@dataclass(frozen=True)
class WeighedRun:
    """What a run kept of its weights.   missing: why there is nothing to show."""

    name: str
    used: UsedTable | None
    raised: tuple[Extreme, ...] = ()
    lowered: tuple[Extreme, ...] = ()
    missing: str = ""


@dataclass(frozen=True)
class Inside:
    """What was found in a column of a table, for the networks of one seed.   failure: why nothing could be shown."""

    table: str
    column: Column
    seed: int
    names: tuple[str, ...]
    gallery: Gallery | None
    weighed: tuple[WeighedRun, ...]
    failure: str = ""


def look_inside(results: Sequence[BenchResult], settings: ReportSettings) -> list[Inside]:
    """One setting per table, the hardest that has runs, for as many tables as the settings say."""
    chosen = [found for result in results if (found := choose_group(result)) is not None]
    return [_look(result, column, refs, settings) for result, column, refs in chosen[: settings.panels]]


Group = tuple[BenchResult, Column, dict[str, RunRef]]


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


def _look(result: BenchResult, column: Column, refs: dict[str, RunRef], settings: ReportSettings) -> Inside:
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
