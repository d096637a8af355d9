"""One comparison in detail: groups of class and context, classes, confusions and calibration, over paired seeds.

Groups come from the records of the evaluation or, for older runs, from the predictions that `stablenet evaluate` leaves
in a run folder, as do confusions and calibration curves. What neither contains is not shown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from stablenet.bench.results import BenchResult, ResultCell, RunRef, Versus, compare_seeds
from stablenet.engine.run import Decided
from stablenet.errors import UserError
from stablenet.frames import read_frame
from stablenet.pages import WIDTH, Drawing, Scale, choose_shade
from stablenet.report.comparisons import Gain


@dataclass(frozen=True)
class CellDecisions:
    """acted: how many of the runs act.   reasons: the distinct ones, with the number of runs that gave them."""

    row: str
    column: str
    runs: int
    acted: int
    reasons: tuple[tuple[str, int], ...]


def list_decisions(result: BenchResult) -> tuple[CellDecisions, ...]:
    """For every cell with runs that made a decision; columns with other metrics of the same runs are left out."""
    return tuple(_collect(result))


def _collect(result: BenchResult) -> Iterable[CellDecisions]:
    for row in result.rows:
        seen = set()
        for column in result.columns:
            decided = _read(result.cell(row.id, column.id))
            if not decided or column.mean_of or frozenset(decided) in seen:
                continue
            seen.add(frozenset(decided))
            found = list(decided.values())
            name = f"{column.group}: {column.title}" if column.group else column.title
            reasons = Counter(each.reason for each in found).most_common()
            yield CellDecisions(row.title, name, len(found), sum(each.acts for each in found), tuple(reasons))


def _read(cell: ResultCell) -> dict[Path, Decided]:
    refs = (ref for value in cell.values for ref in value.runs)
    return {ref.path: ref.decided for ref in refs if ref.decided is not None}


MOST_CONTEXTS, MOST_CLASSES = 12, 24  # of a grid that can be read
BINS = 10  # of a calibration curve
FULL = 10.0  # points of a group's gain that are shown in full colour
COLUMNS = ("domain", "class", "right", "predicted", "probability")


@dataclass(frozen=True)
class Compared:
    """A share in percent of both methods, means over the paired seeds.   count: samples of one seed."""

    theirs: float
    ours: float
    versus: Versus
    count: int = 0

    @property
    def shade(self) -> str:
        """Style of the cell: better green, worse red, in four steps."""
        step = min(1 + int(abs(self.versus.mean) / FULL * 4), 4)
        return f"{'up' if self.versus.mean >= 0 else 'down'}{step}" if abs(self.versus.mean) >= 0.05 else ""


@dataclass(frozen=True)
class Confusion:
    """Of one method: for every class the shares in percent of what was predicted, and the style of each cell."""

    name: str
    rows: Sequence[tuple[str, Sequence[tuple[float, str]]]]


@dataclass(frozen=True)
class Detail:
    """groups: by (class, context), None where nobody knows or there are too many.   worst: each seed's worst group.
    classes: by name.   confusions: of both methods.   calibration: error of both, in percent.   curve: as SVG.
    """

    gain: Gain
    contexts: tuple[str, ...]
    class_names: tuple[str, ...]
    groups: Mapping[tuple[str, str], Compared] | None
    worst: Compared | None
    classes: Mapping[str, Compared]
    confusions: Sequence[Confusion]
    calibration: Compared | None
    curve: str

    @property
    def is_empty(self) -> bool:
        return not (self.groups or self.classes or self.calibration)


Figures = Mapping[Path, Mapping[str, Any] | None]


def look_closer(gain: Gain, figures: Figures, rule: str) -> Detail:
    """figures: of the evaluation, by run folder.   rule: which evaluation's predictions are read."""
    sides = [gain.runs[gain.reference.id], gain.runs[gain.row.id]]
    tables = [_read_predictions(side, rule) for side in sides]
    known = all(table is not None for table in tables)
    recorded = [_read_groups(side, figures) for side in sides]
    shares = [
        _average(found) if found is not None else None
        for found in (recorded if all(recorded) else [_count_groups(table) for table in tables])
    ]
    groups = _compare_groups([share for share in shares if share is not None]) if all(shares) else {}
    contexts = tuple(dict.fromkeys(context for _, context in groups))
    names = tuple(dict.fromkeys(name for name, _ in groups))
    readable = 1 < len(contexts) <= MOST_CONTEXTS and len(names) <= MOST_CLASSES
    classes = _compare_records(sides, figures, lambda found: found.get("per_class") or {})
    return Detail(
        gain=gain,
        contexts=contexts,
        class_names=names,
        groups=groups if groups and readable else None,
        worst=_compare_records(sides, figures, _pick_worst).get("", None),
        classes=classes if len(classes) <= MOST_CLASSES else {},
        confusions=_find_confusions(gain, tables) if known and len(classes) <= MOST_CONTEXTS else (),
        calibration=_compare_records(sides, figures, lambda found: _pick(found, "calibration_error")).get("", None),
        curve=draw_calibration(tables) if known else "",
    )


def _read_predictions(side: Mapping[int, Sequence[RunRef]], rule: str) -> dict[int, list[pd.DataFrame]] | None:
    """The predictions of every run by seed; None where one of them is gone or cannot be read."""
    found: dict[int, list[pd.DataFrame]] = defaultdict(list)
    for seed, refs in side.items():
        for ref in refs:
            path = ref.path / f"predictions-{rule}-test.parquet"
            try:
                found[seed].append(read_frame(path, columns=COLUMNS))
            except (OSError, ValueError, KeyError, UserError):
                return None
    return dict(found)


Group = tuple[str, str]  # class, context
Counts = dict[int, list[dict[Group, tuple[int, int]]]]  # by seed, for every run: right and all
Shares = dict[int, dict[Group, tuple[float, int]]]  # by seed: share and count


def _read_groups(side: Mapping[int, Sequence[RunRef]], figures: Figures) -> Counts | None:
    """From the records; None where a run's hold none, or have too many contexts to list."""
    found: Counts = {}
    for seed, refs in side.items():
        listed = [((figures.get(ref.path) or {}).get("groups") or {}).get("per_group") for ref in refs]
        if not all(listed):
            return None
        found[seed] = [
            {
                (name, context): (group["right"], group["count"])
                for context, cells in each.items()
                for name, group in cells.items()
            }
            for each in listed
            if each
        ]
    return found


def _count_groups(tables: Mapping[int, Sequence[pd.DataFrame]] | None) -> Counts | None:
    """The same from predictions."""
    if tables is None:
        return None
    found: Counts = {}
    for seed, frames in tables.items():
        parts = [frame.groupby(["class", "domain"], sort=True)["right"].agg(["sum", "size"]) for frame in frames]
        found[seed] = [
            {(str(name), str(context)): (int(right), int(size)) for (name, context), right, size in part.itertuples()}
            for part in parts
        ]
    return found


def _average(counts: Counts) -> Shares:
    """(share, count) of every group by seed; of several runs of a seed the mean."""
    shares: Shares = {}
    for seed, runs in counts.items():
        keys = sorted({key for run in runs for key in run})
        cells = {key: [run[key] for run in runs if key in run] for key in keys}
        shares[seed] = {key: (fmean(right / size for right, size in each), each[0][1]) for key, each in cells.items()}
    return shares


def _compare_groups(sides: Sequence[Shares]) -> dict[tuple[str, str], Compared]:
    """Groups that both methods have in some seed."""
    theirs, ours = sides
    keys = sorted({key for shares in ours.values() for key in shares})
    found = {}
    for key in keys:
        pair = [{seed: 100 * side[seed][key][0] for seed in side if key in side[seed]} for side in (theirs, ours)]
        count = next((side[seed][key][1] for side in sides for seed in side if key in side[seed]), 0)
        compared = _compare(pair[0], pair[1], count)
        if compared is not None:
            found[key] = compared
    return found


def _compare(theirs: Mapping[int, float], ours: Mapping[int, float], count: int = 0) -> Compared | None:
    versus = compare_seeds(ours, theirs)
    if versus is None:
        return None
    means = [fmean(side[seed] for seed in versus.seeds) for side in (theirs, ours)]
    return Compared(means[0], means[1], versus, count)


def _pick(found: Mapping[str, Any], name: str) -> dict[str, float]:
    value = found.get(name)
    return {} if value is None else {"": value}


def _pick_worst(found: Mapping[str, Any]) -> dict[str, float]:
    """Of the groups that are large enough, where the records tell them apart."""
    worst = (found.get("groups") or {}).get("worst")
    return {"": worst["accuracy"]} if worst else _pick(found, "worst_group_accuracy")


def _compare_records(
    sides: Sequence[Mapping[int, Sequence[RunRef]]], figures: Figures, read: Any
) -> dict[str, Compared]:
    """Figures of the records by name, in percent; of several runs of a seed the mean."""
    values: list[dict[str, dict[int, float]]] = []
    for side in sides:
        by_name: dict[str, dict[int, float]] = defaultdict(dict)
        for seed, refs in side.items():
            found = [read(figures.get(ref.path) or {}) for ref in refs]
            for name in found[0] if found else ():
                if all(name in each for each in found):
                    by_name[name][seed] = 100 * fmean(each[name] for each in found)
        values.append(by_name)
    names = [name for name in values[0] if name in values[1]]
    compared = {name: _compare(values[0][name], values[1][name]) for name in names}
    return {name: found for name, found in compared.items() if found is not None}


def _find_confusions(gain: Gain, tables: Sequence[Mapping[int, Sequence[pd.DataFrame]] | None]) -> list[Confusion]:
    titles = (gain.reference.title, gain.row.title)
    return [_confuse(title, _pool(table)) for title, table in zip(titles, tables, strict=True) if table is not None]


def _pool(table: Mapping[int, Sequence[pd.DataFrame]]) -> pd.DataFrame:
    return pd.concat([frame for frames in table.values() for frame in frames], ignore_index=True)


def _confuse(title: str, frame: pd.DataFrame) -> Confusion:
    names = sorted({*frame["class"], *frame["predicted"]}, key=str)
    shares = 100 * pd.crosstab(frame["class"], frame["predicted"], normalize="index")
    shares = shares.reindex(index=names, columns=names, fill_value=0.0)
    rows = [
        (str(name), [(value, choose_shade(value, 0, 100)) for value in line])
        for name, line in zip(names, shares.to_numpy().tolist(), strict=True)
    ]
    return Confusion(title, rows)


def measure_calibration(frame: pd.DataFrame) -> list[tuple[float, float, int]]:
    """(mean confidence, share right, count) of every bin of the largest probability that is not empty."""
    place = (frame["probability"].clip(0, 1 - 1e-9) * BINS).astype(int)
    grouped = frame.groupby(place)[["probability", "right"]].mean().astype(float)
    counts = frame.groupby(place).size()
    return [(float(c), float(r), int(n)) for (c, r), n in zip(grouped.to_numpy().tolist(), counts, strict=True)]


def draw_calibration(tables: Iterable[Mapping[int, Sequence[pd.DataFrame]] | None]) -> str:
    """Share of correct predictions over confidence, for both methods; the dashed line is perfect calibration."""
    drawing = Drawing(WIDTH, 220, "Share of right answers over confidence")
    across, up = Scale(0, 1, 44, WIDTH - 14), Scale(0, 1, 178, 14)
    for tick in (0, 0.25, 0.5, 0.75, 1):
        drawing.line(44, up(tick), WIDTH - 14, up(tick), "grid")
        drawing.text(38, up(tick) + 4, f"{100 * tick:.0f} %", "tick", "end")
        drawing.text(across(tick), 194, f"{100 * tick:.0f} %", "tick", "middle")
    drawing.line(across(0), up(0), across(1), up(1), "mark")
    for style, table in zip(("erm", "stablenet"), tables, strict=True):
        points = measure_calibration(_pool(table)) if table else []
        drawing.path([(across(c), up(r)) for c, r, _ in points], f"thick {style}")
        for c, r, n in points:
            hint = f"confidence {100 * c:.0f} %: {100 * r:.0f} % right ({n:,} predictions)"
            drawing.dot(across(c), up(r), 3.6, f"dot {style}", hint)
    drawing.text(across(0.5), 214, "confidence (across), share right (up)", "tick", "middle")
    return drawing.render()
