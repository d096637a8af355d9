"""From a cell of a table to the runs behind it: config, hash, command line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from stablenet.bench.tables import Column, Row, Table
from stablenet.engine.assemble import assemble_config
from stablenet.engine.config import RunConfig, fingerprint, hash_values, merge
from stablenet.errors import UserError
from stablenet.files import hash_file
from stablenet.registry import unknown_name


@dataclass(frozen=True, kw_only=True)
class CellRun:
    """One run of a cell. hash: of the config.   series: of the config without its seed, the same for all seeds.
    recipe, settings: the words of `stablenet train` that make it.
    """

    config: RunConfig
    hash: str
    series: str
    recipe: str
    settings: tuple[str, ...]

    @property
    def command(self) -> str:
        """The shell line that trains the same run."""
        source = ["--config" if self.recipe.endswith(".toml") else "--recipe", self.recipe]
        said = [word for text in self.settings for word in ("--set", text)]
        return shlex.join(["stablenet", "train", *source, *said])


def make_run(
    table: Table, row: Row, column: Column, seed: int, chosen: Mapping[str, Any] | None = None, root: Path | None = None
) -> CellRun:
    """The run of a row in a column that holds runs.   chosen: config values found by a search."""
    values = merge(merge(table.settings, row.values), chosen or {})
    settings = (*flatten(values), f"seed={seed}")
    recipe, file = row.recipe or column.recipe, column.config
    if recipe:
        config = assemble_config(recipe, None, settings)
    else:
        path = (table.path.parent if table.path else Path()) / file
        config, recipe = assemble_config(None, path, settings), str(path)
    hashed = describe(config, root)
    return CellRun(
        config=config,
        hash=hash_values(hashed),
        series=name_series(hashed),
        recipe=recipe,
        settings=settings,
    )


def describe(config: RunConfig, root: Path | None) -> dict[str, Any]:
    """What a config is hashed by, files by their contents."""
    from stablenet.models.build import find_weights

    weights = config.model.pretrained
    weights_hash = _hash_contents(find_weights(weights, root)) if weights.endswith(".safetensors") else ""
    return fingerprint(config, _hash_manifest(config.data.manifest) if config.data.manifest else "", weights_hash)


def name_series(hashed: Mapping[str, Any]) -> str:
    """The hash of all a config is hashed by but its seed."""
    return hash_values({name: value for name, value in hashed.items() if name != "seed"})


def flatten(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Nested config values as `stablenet train --set` takes them; empty tables say nothing."""
    settings = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            settings += flatten(value, f"{prefix}{name}.")
        else:
            settings.append(f"{prefix}{name}={json.dumps(value, ensure_ascii=False)}")
    return settings


def choose_rows(table: Table, methods: Sequence[str] = ()) -> tuple[Row, ...]:
    """The rows named by id, or all of a method where no id is so called; without names all that are not extra."""
    if not methods:
        return tuple(row for row in table.rows if not row.extra)
    rows = [row for name in methods for row in _find_rows(table, name)]
    return tuple({row.id: row for row in rows}.values())


def add_rows(table: Table) -> tuple[Row, ...]:
    """A row for every method the table does not name: whoever ran one of them finds it there."""
    from stablenet.algorithms import ALGORITHMS

    there = {row.method for row in table.rows}
    return tuple(_make_extra(name) for name in ALGORITHMS if name not in there)


def check_methods(runs: Iterable[CellRun]) -> None:
    """Refuse unknown methods and parameters before anything is started."""
    from stablenet.algorithms import ALGORITHMS
    from stablenet.fields import read_fields

    for run in runs:
        method = run.config.method
        read_fields(ALGORITHMS[method.name].settings_type, method.parameters, "method.parameters")


def _find_rows(table: Table, name: str) -> Sequence[Row]:
    """A method the table does not name has a row of its own."""
    from stablenet.algorithms import ALGORITHMS

    rows = [row for row in table.rows if row.id == name] or [row for row in table.rows if row.method == name]
    if rows:
        return rows
    if name not in set(ALGORITHMS):
        raise UserError(unknown_name("row or method", name, {*(row.id for row in table.rows), *ALGORITHMS}))
    return [_make_extra(name)]


def _make_extra(method: str) -> Row:
    return Row(id=method, title=method, method=method, extra=True)


@cache
def _hash_contents(path: Path) -> str:
    return hash_file(path)


@cache
def _hash_manifest(path: str) -> str:
    from stablenet.data.manifest import Manifest

    return Manifest.load(Path(path)).hash
