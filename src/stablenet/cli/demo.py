"""`stablenet demo`: ERM beside StableNet on the embedded data, and a page of what came out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stablenet.demo import Demo

INTERRUPTED = 130  # what a shell expects of a program stopped by Ctrl-C


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the page and the runs.")] = Path("demo"),
    seeds: Annotated[int, typer.Option(min=2, help="How many seeds, from 0 on.")] = 3,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of every run; by default the recipe's 30.", show_default=False)
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at once; by default one per core.", show_default=False)
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Train ERM and StableNet on the embedded data, some minutes without a network, and show what came out."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from stablenet.demo import DemoSettings, run_demo
    from stablenet.demo.train import make_configs

    settings = DemoSettings(output=output, seeds=tuple(range(seeds)), epochs=epochs, workers=workers)
    names = {config.name: config.train.epochs for config in make_configs(settings)}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(f"training {len(names)} runs", total=sum(names.values()))
        done = dict.fromkeys(names, 0)

        def report(name: str, epoch: int) -> None:
            done[name] = epoch
            bar.update(task, completed=sum(done.values()))

        try:
            finished = run_demo(settings, report)
        except KeyboardInterrupt:
            typer.echo("stopped; the same command goes on from here", err=True)
            raise typer.Exit(INTERRUPTED) from None
        bar.update(task, completed=sum(names.values()))
    _print_result(finished)
    if show:
        typer.launch(finished.page.resolve().as_uri())


def _print_result(demo: Demo) -> None:
    from rich.console import Console
    from rich.table import Table

    from stablenet.demo.verdict import write_verdict

    findings = demo.findings
    table = Table(
        "accuracy in %", "held-out, training world", "target", title=f"{len(findings.seeds)} seeds, mean ± sd"
    )
    for name, outcomes in (("ERM", findings.reference), ("StableNet", findings.method)):
        spreads = (findings.spread_validation(outcomes), findings.spread_target(outcomes))
        table.add_row(name, *(f"{100 * spread.mean:.1f} ± {100 * spread.deviation:.1f}" for spread in spreads))
    console = Console()
    console.print(table)
    headline, worth = write_verdict(findings.compare_target())
    console.print(f"{headline} {worth}", highlight=False, markup=False)
    console.print(f"{demo.seconds:.0f} s; page: {demo.page.resolve()}", highlight=False, markup=False, soft_wrap=True)
