"""The runs of a table cell: config, hash, command line, and the values chosen by a search."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stablenet.bench.paper_tables import PaperTable, Row, TableColumn
from stablenet.engine.config import RunConfig, assemble_config, merge, walk_values
from stablenet.engine.identity import identify, read_contents
from stablenet.errors import UserError
from stablenet.files import lock, read_json, write_json
from stablenet.registry import unknown_name


def record_path(runs: Path, table: PaperTable) -> Path:
    """Path of a table's search record, in a hidden folder next to the runs."""
    return runs / ".bench" / f"{table.name}.json"


def read_record(runs: Path, table: PaperTable) -> dict[str, Any]:
    """{"search": {row: {group: {"values", "score", "budget", "seeds", "trials"}}}}, empty before the first search."""
    path = record_path(runs, table)
    record: dict[str, Any] = read_json(path) if path.exists() else {}
    return record


def record_search(runs: Path, table: PaperTable, row: str, group: str, found: Mapping[str, Any]) -> Path:
    """Record the result of a search for a row and group, replacing an earlier one."""
    path = record_path(runs, table)
    with lock(path):
        record = read_record(runs, table)
        record.setdefault("search", {}).setdefault(row, {})[group] = dict(found)
        write_json(path, record)
    return path


def find_chosen(record: Mapping[str, Any], row: str, group: str) -> dict[str, Any] | None:
    """The config values chosen by a search for a row in a group of columns; None without a search."""
    found = record.get("search", {}).get(row, {}).get(group)
    return None if found is None else dict(found["values"])


@dataclass(frozen=True, kw_only=True)
class CellRun:
    """One run of a cell. hash: of the config.   series: hash without the seed, the same for all seeds.
    recipe, settings: arguments of `stablenet train` for this run.
    """

    config: RunConfig
    hash: str
    series: str
    recipe: str
    settings: tuple[str, ...]

    @property
    def command(self) -> str:
        """The shell command that trains the same run."""
        source = ["--config" if self.recipe.endswith(".toml") else "--recipe", self.recipe]
        options = [word for text in self.settings for word in ("--set", text)]
        return shlex.join(["stablenet", "train", *source, *options])


def make_run(
    table: PaperTable,
    row: Row,
    column: TableColumn,
    seed: int,
    chosen: Mapping[str, Any] | None = None,
    root: Path | None = None,
) -> CellRun:
    """The run of a row in a column with runs.   chosen: config values found by a search."""
    values = merge(merge(table.settings, row.values), chosen or {})
    settings = (*flatten(values), f"seed={seed}")
    recipe, file = row.recipe or column.recipe, column.config
    if recipe:
        config = assemble_config(recipe, None, settings)
    else:
        path = (table.path.parent if table.path else Path()) / file
        config, recipe = assemble_config(None, path, settings), str(path)
    identity = identify(config, read_contents(config, root))
    return CellRun(
        config=config,
        hash=identity.hash,
        series=identity.series,
        recipe=recipe,
        settings=settings,
    )


def flatten(values: Mapping[str, Any]) -> list[str]:
    """Nested config values as arguments of `stablenet train --set`; empty tables are skipped."""
    return [f"{'.'.join(names)}={json.dumps(value, ensure_ascii=False)}" for names, value in walk_values(values)]


def choose_rows(table: PaperTable, methods: Sequence[str] = ()) -> tuple[Row, ...]:
    """The rows with the given ids, or all rows of a method if no id matches; by default all that are not extra."""
    if not methods:
        return tuple(row for row in table.rows if not row.extra)
    rows = [row for name in methods for row in _find_rows(table, name)]
    return tuple({row.id: row for row in rows}.values())


def add_rows(table: PaperTable) -> tuple[Row, ...]:
    """A row for every method that is not in the table, so that its runs are shown too."""
    from stablenet.algorithms import ALGORITHMS

    there = {row.method for row in table.rows}
    return tuple(_make_extra(name) for name in ALGORITHMS if name not in there)


def check_methods(runs: Iterable[CellRun]) -> None:
    """Raise for unknown methods and wrong values in any config, before any run starts."""
    from stablenet.engine.run_data import check_config

    for run in runs:
        check_config(run.config)


def _find_rows(table: PaperTable, name: str) -> Sequence[Row]:
    """Rows by id or method; a method that is not in the table gets a new row."""
    from stablenet.algorithms import ALGORITHMS

    rows = [row for row in table.rows if row.id == name] or [row for row in table.rows if row.method == name]
    if rows:
        return rows
    if name not in set(ALGORITHMS):
        raise UserError(unknown_name("row or method", name, {*(row.id for row in table.rows), *ALGORITHMS}))
    return [_make_extra(name)]


def _make_extra(method: str) -> Row:
    return Row(id=method, title=method, method=method, extra=True)
