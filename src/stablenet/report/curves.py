"""Training curves: what the records say of every epoch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from stablenet.bench import BenchResult, Column
from stablenet.engine.folder import RunFolder
from stablenet.files import read_lines
from stablenet.report.gather import shown_rows

Curve: TypeAlias = list[tuple[int, float]]  # epoch from 1, percent
PARTS = {"train": "in training", "validation": "on held-out images"}


class CurveReader:
    """Reads every run once, however many cells it stands behind."""

    def __init__(self) -> None:
        self._read: dict[Path, dict[str, Curve]] = {}

    def read(self, path: Path) -> Mapping[str, Curve]:
        """Accuracy per epoch by part; a part without figures is empty."""
        if path not in self._read:
            epochs = [record for record in read_lines(RunFolder(path).records) if record["kind"] == "epoch"]
            self._read[path] = {part: _read_part(epochs, part) for part in PARTS}
        return self._read[path]

    def read_column(self, result: BenchResult, column: Column, part: str) -> dict[str, list[Curve]]:
        """The curves of all runs of a column by row, runs under way among them; rows without any are left out."""
        found = {}
        for row in shown_rows(result):
            cell = result.cell(row.id, column.id)
            paths = [ref.path for value in cell.values for ref in value.runs] + [ref.path for ref in cell.unfinished]
            curves = [curve for path in paths if (curve := self.read(path)[part])]
            if curves:
                found[row.id] = curves
        return found


def _read_part(epochs: list[dict[str, Any]], part: str) -> Curve:
    pairs = ((record["epoch"], (record.get(part) or {}).get("accuracy")) for record in epochs)
    return [(epoch, 100 * share) for epoch, share in pairs if share is not None]
