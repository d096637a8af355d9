"""`stablenet runs`: what has been trained, how far, how well."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

_COLOURS = {"finished": "green", "running": "cyan", "failed": "red", "interrupted": "yellow", "killed": "yellow"}


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder of run folders.")] = Path("runs"),
) -> None:
    """List the runs: state, epochs, best source validation."""
    from rich.console import Console

    from stablenet.errors import UserError

    if not folder.is_dir():
        raise UserError(f"there are no runs in {folder}: make one with `stablenet train`, or name their folder")
    Console().print(tabulate_runs(folder))


def tabulate_runs(folder: Path) -> Table:
    from rich.markup import escape
    from rich.table import Column, Table

    from stablenet.engine.records import find_best
    from stablenet.engine.runs import list_runs

    table = Table(
        Column("run", overflow="fold"),
        "method",
        "seed",
        "state",
        "epochs",
        "best validation",
        title=f"runs in {folder}",
    )
    for run in list_runs(folder):
        status = run.status
        best = find_best(run.records)
        state = f"[{_COLOURS[status['state']]}]{status['state']}[/]"
        if status["reason"] and status["state"] == "failed":
            state += f"\n{escape(status['reason'].splitlines()[0][:80])}"
        table.add_row(
            escape(run.path.name),
            run.config.method.name,
            str(run.config.seed),
            state,
            f"{status['epoch']}/{run.config.train.epochs}",
            f"{best['validation']['accuracy']:.1%} (epoch {best['epoch']})" if best else "–",
        )
    return table
