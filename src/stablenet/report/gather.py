"""Everything a page tells, read from run folders: tables filled, runs, and what could not be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stablenet.bench import BenchResult, Row, Table, collect, find_table, list_tables
from stablenet.bench.scan import FoundRun, Problem, Scan, scan_runs
from stablenet.errors import UserError
from stablenet.evaluation.selection import DEFAULT_RULE, RULES


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """runs: folder of run folders.   output: folder for the page and the tables' files.
    tables: names or own files; none takes every table that has runs.   tuned: of runs with values a search chose.
    panels: data settings whose networks are looked into, one per table; 0 loads no network.
    images: of every saliency panel.   root: where the data sources lie.
    """

    runs: Path = Path("runs")
    output: Path = Path("report")
    tables: tuple[str, ...] = ()
    rule: str = DEFAULT_RULE
    tuned: bool = False
    panels: int = 2
    images: int = 8
    root: Path | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        RULES[self.rule]  # an unknown one is named here
        if self.panels < 0:
            raise UserError(f"panels must be 0 or more, got {self.panels}")
        if self.images < 1:
            raise UserError(f"images must be at least 1, got {self.images}")

    @property
    def page(self) -> Path:
        return self.output / "index.html"


@dataclass(frozen=True)
class Gathered:
    """results: one per table, those that were asked for or have runs.   runs: all that could be read."""

    results: tuple[BenchResult, ...]
    runs: tuple[FoundRun, ...]
    problems: tuple[Problem, ...]

    @property
    def notes(self) -> list[str]:
        """What the reader has to know of the runs as a whole, a sentence each."""
        told = [f"left out {problem.path.name}: {problem.reason}" for problem in self.problems]
        versions = sorted({run.version or "unknown" for run in self.runs})
        if len(versions) > 1:
            told.append(f"the runs come from several versions of stablenet: {', '.join(versions)}")
        for result in (result for result in self.results if not has_runs(result)):
            why = next((cell.reason for cell in result.cells.values() if cell.state == "missing"), "it has no cells")
            told.append(f"no run belongs to the table {result.table.name}: {why}")
        return told


def gather(settings: ReportSettings) -> Gathered:
    """Read the folder once and fill the tables."""
    if not settings.runs.is_dir():
        raise UserError(
            f"there are no runs in {settings.runs}: make some with `stablenet bench run` or `stablenet train`, "
            "or name their folder with --runs"
        )
    scan = scan_runs(settings.runs, settings.rule)
    asked = [find_table(name) for name in dict.fromkeys(settings.tables)]
    results = [_fill(table, settings, scan) for table in asked or list_tables().values()]
    return Gathered(tuple(r for r in results if asked or has_runs(r)), scan.runs, scan.problems)


def _fill(table: Table, settings: ReportSettings, scan: Scan) -> BenchResult:
    return collect(table, settings.runs, rule=settings.rule, tuned=settings.tuned, root=settings.root, scan=scan)


def has_runs(result: BenchResult, rows: Sequence[Row] | None = None) -> bool:
    """Whether any of the rows, or any at all, has a run, finished or not."""
    chosen = {row.id for row in rows or result.rows}
    return any(cell.values or cell.unfinished for cell in result.cells.values() if cell.row in chosen)


def shown_rows(result: BenchResult) -> list[Row]:
    """Rows of the table; those beside it only where they have runs."""
    return [row for row in result.rows if not row.extra or has_runs(result, [row])]
