"""`stablenet evaluate`: finished runs on the target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from stablenet.evaluation.evaluate import Evaluation


def evaluate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.", show_default=False)],
    rule: Annotated[
        str, typer.Option(help="Which model: source-validation, last, averaged, or oracle (looks at the target).")
    ] = "source-validation",
    part: Annotated[
        list[str] | None, typer.Option(help="Part of the split, as often as wanted; by default test.")
    ] = None,
    root: Annotated[
        Path | None, typer.Option(envvar="STABLENET_DATA", help="Folder or archive the data source lies in.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    batch_size: Annotated[int, typer.Option(min=1)] = 128,
) -> None:
    """Evaluate finished runs on the target, and keep figures and predictions in their folders."""
    from rich.console import Console

    from stablenet.cli.bars import show_progress
    from stablenet.engine.runs import load_run
    from stablenet.evaluation.evaluate import evaluate_run

    console = Console()
    evaluations: list[Evaluation] = []
    opened = [load_run(path) for path in runs]
    for run in opened:
        with show_progress(f"evaluating {run.path.name}") as progress:
            evaluations += evaluate_run(
                run,
                rule=rule,
                parts=part or ["test"],
                root=root,
                device=device,
                batch_size=batch_size,
                progress=progress,
            )
    console.print(tabulate_figures(evaluations))
    if len(evaluations) == 1:
        console.print(tabulate_shares(evaluations[0]))
    for evaluation in evaluations:
        console.print(f"predictions: {evaluation.predictions}", markup=False, highlight=False, soft_wrap=True)


def tabulate_figures(evaluations: list[Evaluation]) -> Table:
    """One row per run and part; all rows share one rule, so that the oracle's never stand beside others."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    rule = evaluations[0].choice.rule
    style = "bold red" if rule.looks_at_target else "bold"
    table = Table(title=f"rule {rule.name}: {rule.title}", title_style=style, title_justify="left", box=box.SIMPLE)
    table.add_column("run, part", overflow="fold")
    for name in ("epoch", "images", "overall", "mean over\ndomains", "worst\ngroup", "calibration\nerror"):
        table.add_column(name, justify="right", no_wrap=True)
    for evaluation in evaluations:
        figures = evaluation.figures
        shares = (figures[f"{name}accuracy"] for name in ("", "mean_domain_", "worst_group_"))
        table.add_row(
            escape(f"{evaluation.run.path.name}, {evaluation.part}"),
            str(evaluation.choice.epoch),
            f"{figures['count']:,}",
            *(f"{100 * share:.1f} %" for share in shares),
            f"{figures['calibration_error']:.3f}",
        )
    return table


def tabulate_shares(evaluation: Evaluation) -> Table:
    """Accuracy per class and, where they are few, per domain; the worst group by name."""
    from rich.markup import escape
    from rich.table import Table

    figures = evaluation.figures
    table = Table.grid(padding=(0, 2))
    for what in ("per_domain", "per_class"):
        for number, (name, share) in enumerate(figures.get(what, {}).items()):
            heading = what.replace("_", " ") if number == 0 else ""
            table.add_row(heading, escape(name), f"{100 * share:5.1f} %", "█" * round(20 * share))
    worst = figures["worst_group"]
    group, images = escape(f"{worst['class']} on {worst['domain']}"), "image" if worst["count"] == 1 else "images"
    table.add_row("worst group", group, f"{100 * worst['accuracy']:5.1f} %", f"of {worst['count']} {images}")
    return table
