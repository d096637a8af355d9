"""What the paper shows, in its order: the commands of each table and figure, its needs, and what has been measured."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from stablenet.bench.results import BenchResult
from stablenet.values import NonNegative, check_fields, read_fields


@dataclass(frozen=True, kw_only=True)
class PaperItem:
    """tables: filled by `stablenet bench`.   near: the same comparison on other data, or with another network.
    needs: data sources and weights.   hours: of a GPU, see the file; None where nothing is trained.
    measured: what has been run for this project; empty for nothing.
    """

    name: str
    what: str
    command: str = ""
    tables: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    hours: NonNegative | None = None
    measured: str = ""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def commands(self) -> tuple[str, ...]:
        """What reproduces it, then what comes near it."""
        runs = [f"stablenet bench run {table}" for table in (*self.tables, *self.near)]
        return (*((self.command,) if self.command else ()), *runs)

    @property
    def state(self) -> str:
        """What has been measured for this project, or that nothing has."""
        if self.measured:
            return self.measured
        return "never run" if self.needs else ""


@cache
def list_items() -> tuple[PaperItem, ...]:
    """All tables and figures, in the paper's order."""
    lines = tomllib.loads(files("stablenet.bench").joinpath("paper_list.toml").read_text(encoding="utf-8"))["item"]
    return tuple(read_fields(PaperItem, line, "item") for line in lines)


def count_cells(item: PaperItem, results: Mapping[str, BenchResult]) -> str:
    """How many cells of the item's tables have results: "unbalanced-5 12 of 60"; tables without any are left out.

    results: filled tables by name.
    """
    told = []
    for name in (*item.tables, *item.near):
        result = results[name]
        wanted = {row.id for row in result.table.rows if not row.extra}
        cells = [cell for (row, _), cell in result.cells.items() if row in wanted and cell.state != "by-design"]
        measured = sum(cell.state == "measured" for cell in cells)
        told += [f"{name} {measured} of {len(cells)}"] if measured else []
    return ", ".join(told)
