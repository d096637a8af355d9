"""`stablenet report`: the results as one page, and as Markdown, LaTeX and CSV."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stablenet.report import Report, ReportSettings


def report(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE]...",
            help="Tables by name, or own .toml files; by default all that have runs.",
            show_default=False,
        ),
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder of run folders.")] = Path("runs"),
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the page and the tables' files.")] = Path(
        "report"
    ),
    rule: Annotated[
        str, typer.Option(help="Which epoch's model: source-validation, last, or oracle (looks at the target).")
    ] = "source-validation",
    tuned: Annotated[bool, typer.Option("--tuned", help="The runs with values that `bench search` chose.")] = False,
    panels: Annotated[
        int, typer.Option(min=0, help="Tables whose networks are looked into (saliency, weights); 0: none.")
    ] = 2,
    images: Annotated[int, typer.Option(min=1, help="Images on a saliency panel.")] = 8,
    root: Annotated[
        Path | None, typer.Option(envvar="STABLENET_DATA", help="Folder or archive the data sources lie in.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    watch: Annotated[bool, typer.Option("--watch", help="Serve the page on localhost and keep it up to date.")] = False,
    port: Annotated[int, typer.Option(help="Port for --watch; 0 takes a free one.")] = 8137,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks at the runs, with --watch.")] = 5.0,
) -> None:
    """Write the results as one page with charts, and the tables as Markdown, LaTeX and CSV."""
    from stablenet.report import ReportSettings, build_report

    settings = ReportSettings(
        runs=runs,
        output=output,
        tables=tuple(tables or ()),
        rule=rule,
        tuned=tuned,
        panels=panels,
        images=images,
        root=root,
        device=device,
    )
    if watch:
        _watch(settings, port, every)
    else:
        _tell(build_report(settings))


def _tell(made: Report) -> None:
    for note in made.notes:
        typer.secho(f"note: {note}", fg=typer.colors.YELLOW, err=True)
    gathered = made.gathered
    typer.echo(f"{len(gathered.runs)} runs, {len(gathered.results)} tables")
    typer.echo(f"page: {made.page}")
    if made.files:
        typer.echo(f"tables: {made.page.parent}/<table>.md, .tex, .csv")


def _watch(settings: ReportSettings, port: int, every: float) -> None:
    from stablenet.report.serve import Watch

    watching = Watch(settings, port, every, tell=lambda text: typer.echo(text, err=True))
    typer.echo(f"{watching.url} (Ctrl-C ends it)")
    watching.run()
