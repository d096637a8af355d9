"""What a click on a number shows, as JSON inside the page: the runs behind it, each once."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from stablenet.bench import BenchResult, Cell, Column, Row, RunRef
from stablenet.bench.cells import flatten
from stablenet.bench.scan import FoundRun
from stablenet.engine.config import RunConfig
from stablenet.report.gather import shown_rows
from stablenet.report.numbers import name_column


def name_cell(table: int, row: Row, column: Column) -> str:
    """The cell's key in the page."""
    return f"{table}/{row.id}/{column.id}"


def gather_details(results: Sequence[BenchResult], runs: Sequence[FoundRun]) -> str:
    """{"cells": {key: …}, "runs": {folder's name: …}} as text that may stand in a script element."""
    refs: dict[str, dict[str, Any]] = {run.path.name: _describe_found(run) for run in runs}
    cells = {}
    for number, result in enumerate(results):
        for row in shown_rows(result):
            for column in result.columns:
                cell = result.cell(row.id, column.id)
                cells[name_cell(number, row, column)] = _describe_cell(result, row, column, cell)
                for ref in (*cell.unfinished, *(ref for value in cell.values for ref in value.runs)):
                    refs[ref.path.name] |= _describe_ref(ref)
    text = json.dumps({"cells": cells, "runs": refs}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")  # no text in it may end the script element


def _describe_cell(result: BenchResult, row: Row, column: Column, cell: Cell) -> dict[str, Any]:
    versus = cell.versus
    return {
        "title": f"{row.title}, {name_column(column)}",
        "table": result.table.title,
        "state": cell.state,
        "reason": cell.reason,
        "mean": cell.mean,
        "deviation": cell.deviation,
        "paper": cell.paper.value,
        "quoted": cell.paper.status == "quoted",
        "difference": cell.difference,
        "versus": versus and {"mean": versus.mean, "low": versus.low, "high": versus.high, "seeds": len(versus.seeds)},
        "seeds": [[value.seed, value.value, [ref.path.name for ref in value.runs]] for value in cell.values],
        "unfinished": [ref.path.name for ref in cell.unfinished],
    }


def _describe_found(run: FoundRun) -> dict[str, Any]:
    return {
        "path": str(run.path),
        "seed": run.seed,
        "method": run.config.method.name,
        "state": run.state,
        "reason": run.reason,
        "epoch": run.epoch,
        "hash": run.hash,
        "version": run.version,
        "device": run.device,
        "config": run.config.plain(),
        "command": write_command(run.config),
    }


def write_command(config: RunConfig) -> str:
    """A line that trains the same run without a recipe: every setting that is not the default."""
    changed = _find_changed(config.plain(), RunConfig().plain())
    return shlex.join(["stablenet", "train", *(word for text in flatten(changed) for word in ("--set", text))])


def _find_changed(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name, value in values.items():
        default = defaults.get(name)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            changed[name] = _find_changed(value, default)
        elif value != default:
            changed[name] = value
    return changed


def _describe_ref(ref: RunRef) -> dict[str, Any]:
    return {"command": ref.command, "recipe": ref.recipe}
