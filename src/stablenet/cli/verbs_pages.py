"""`stablenet report` and `stablenet saliency`: pages to look at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stablenet.cli.completion import complete_run, complete_table

if TYPE_CHECKING:
    from rich.table import Table

    from stablenet.engine.run import Run
    from stablenet.report import Report, ReportSettings
    from stablenet.saliency import Gallery, Subjects


def report(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TABLE",
            help="Tables by name, or your own .toml files; by default all that have runs.",
            show_default=False,
            autocompletion=complete_table,
        ),
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder of run folders.")] = Path("runs"),
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the page and the table files.")] = Path(
        "report"
    ),
    rule: Annotated[
        str,
        typer.Option(help="Which epoch's model, by rule: see `stablenet evaluate --help`."),
    ] = "source-validation",
    tuned: Annotated[
        bool, typer.Option("--tuned", help="Show the runs with the values that `bench search` chose.")
    ] = False,
    panels: Annotated[
        int, typer.Option(min=0, help="Number of tables to show saliency maps and weights for; 0: none.")
    ] = 2,
    images: Annotated[int, typer.Option(min=1, help="Images per saliency panel.")] = 8,
    root: Annotated[
        Path | None, typer.Option(envvar="STABLENET_DATA", help="Folder or archive of the data sources.")
    ] = None,
    device: Annotated[str, typer.Option(help="The device: auto, cpu, cuda or cuda:1.")] = "auto",
    watch: Annotated[bool, typer.Option("--watch", help="Serve the page on localhost and keep it updated.")] = False,
    port: Annotated[int, typer.Option(help="Port for --watch; 0 picks a free one.")] = 8137,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between updates, with --watch.")] = 5.0,
) -> None:
    """Write a results page with charts, and the tables as Markdown, LaTeX and CSV."""
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
        _print_report(build_report(settings))


def _print_report(made: Report) -> None:
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
    typer.echo(f"{watching.url} (Ctrl-C to stop)")
    watching.run()


def saliency(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders.", show_default=False, autocompletion=complete_run),
    ],
    images: Annotated[
        list[Path] | None, typer.Option(help="Your own image file, folder or image list; repeatable.")
    ] = None,
    masks: Annotated[
        Path | None, typer.Option(help="Folder with a mask for each of your images: same name, PNG, object not black.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of images from the split, without --images.")] = 8,
    part: Annotated[str, typer.Option(help="Part of the split to take images from.")] = "test",
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Page to write; the numbers are saved next to it as CSV.")
    ] = Path("saliency.html"),
    rule: Annotated[str, typer.Option(help="Which epoch's model, by rule: see `stablenet evaluate --help`.")] = (
        "source-validation"
    ),
    samples: Annotated[int, typer.Option(min=1, help="Noisy copies per image.")] = 50,
    noise: Annotated[
        float, typer.Option(help="Standard deviation of the noise, as a share of the image's range.")
    ] = 0.15,
    root: Annotated[
        Path | None, typer.Option(envvar="STABLENET_DATA", help="Folder or archive of the data source.")
    ] = None,
    device: Annotated[str, typer.Option(help="The device: auto, cpu, cuda or cuda:1.")] = "auto",
) -> None:
    """Show where networks look: a page of SmoothGrad maps, runs side by side."""
    from stablenet.cli.console import Console
    from stablenet.cli.outputs import check_outputs, name_beside
    from stablenet.engine.run import load_run
    from stablenet.frames import write_csv
    from stablenet.saliency import SaliencySettings, look
    from stablenet.saliency.views import tabulate_views, write_page

    numbers = name_beside(output, ".csv")
    check_outputs({"--output": output, "the table of numbers": numbers}, images or [])
    opened = [load_run(path) for path in runs]
    subjects = _find_subjects(opened, images or [], masks, count, part, root)
    settings = SaliencySettings(samples=samples, noise=noise)
    gallery = look(opened, subjects, settings, rule=rule, device=device)
    write_page(gallery, output)
    write_csv(tabulate_views(gallery), numbers)
    console = Console()
    console.print(_summarise(gallery))
    console.print(f"page: {output}", soft_wrap=True)


def _find_subjects(
    runs: list[Run], images: list[Path], masks: Path | None, count: int, part: str, root: Path | None
) -> Subjects:
    from stablenet.errors import UserError
    from stablenet.evaluation.predict import gather_images
    from stablenet.saliency import choose_subjects, read_subjects
    from stablenet.saliency.views import check_same_split

    if images:
        return read_subjects(runs[0], [Path(path) for path in gather_images(images)["path"]], masks)
    if masks is not None:
        raise UserError("--masks needs --images: give both, or neither")
    check_same_split(runs)
    return choose_subjects(runs[0], count, part, root)


def _summarise(gallery: Gallery) -> Table:
    from rich.table import Column, Table
    from rich.text import Text

    named = ("on the object", "other noise", "random network", "sanity check")
    table = Table(Column("run", overflow="fold"), *named, title="saliency")
    for view in gallery.views:
        share = "–" if view.mean_share is None else f"{100 * view.mean_share:.1f} %"
        passed = Text("passed", "green") if view.sanity.passed else Text("failed", "red")
        found = (view.sanity.repeated, view.sanity.randomised)
        agreement = ("–" if value is None else f"{value:.2f}" for value in found)
        table.add_row(view.run.path.name, share, *agreement, passed)
    if gallery.area is not None:
        table.caption = f"the object covers {100 * gallery.area:.1f} % of the images"
    return table
