"""The record of a table in a folder of runs: what a hyper-parameter search chose, and how."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stablenet.bench.tables import Table
from stablenet.files import lock, read_json, write_json


def record_path(runs: Path, table: Table) -> Path:
    """Beside the runs, in a folder no run is looked for in."""
    return runs / ".bench" / f"{table.name}.json"


def read_record(runs: Path, table: Table) -> dict[str, Any]:
    """{"search": {row: {group: {"values", "score", "budget", "seeds", "trials"}}}}, empty before the first search."""
    path = record_path(runs, table)
    record: dict[str, Any] = read_json(path) if path.exists() else {}
    return record


def record_search(runs: Path, table: Table, row: str, group: str, found: Mapping[str, Any]) -> Path:
    """Put what a search found for a row and group in the place of what was there."""
    path = record_path(runs, table)
    with lock(path):
        record = read_record(runs, table)
        record.setdefault("search", {}).setdefault(row, {})[group] = dict(found)
        write_json(path, record)
    return path


def find_chosen(record: Mapping[str, Any], row: str, group: str) -> dict[str, Any] | None:
    """The config values a search chose for a row in a group of columns; None where there was no search."""
    found = record.get("search", {}).get(row, {}).get(group)
    return None if found is None else dict(found["values"])
