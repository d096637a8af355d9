"""`stablenet try`: from one's own images to a verdict in one command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stablenet.errors import INTERRUPTED

if TYPE_CHECKING:
    from stablenet.tryout import Tryout


def try_images(
    place: Annotated[
        Path, typer.Argument(help="Images: class/image or domain/class/image, a zip archive, or a list (CSV, Parquet).")
    ],
    part: Annotated[
        str, typer.Option("--part", "--split", help="List: the column with the given split, train, validation, test.")
    ] = "",
    context: Annotated[str, typer.Option(help="List: the column with the context.")] = "",
    label: Annotated[str, typer.Option("--target", "--label", help="List: the column to predict.")] = "",
    unseen: Annotated[
        str, typer.Option(help="A context to keep out of training and test on, instead of a random share of all.")
    ] = "",
    minutes: Annotated[float, typer.Option(min=0.1, help="About how long it may take.")] = 10.0,
    seeds: Annotated[int, typer.Option(min=2, help="Number of seeds, counted from 0.")] = 3,
    root: Annotated[Path | None, typer.Option(help="List: the folder where its paths begin.")] = None,
    backbone: Annotated[str, typer.Option(help="A network; by default one that fits images and machine.")] = "",
    pretrained: Annotated[str, typer.Option(help="Its weights: imagenet, or a .safetensors or .pth file.")] = "",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1")] = "auto",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write; by default try-NAME.", show_default=False)
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Diagnose your images, train with and without StableNet, and say what is gained."""
    from stablenet.tryout import Request, run_tryout

    request = Request(
        place=place,
        output=output or Path(f"try-{place.resolve().stem}"),
        label=label,
        context=context,
        part=part,
        root=root,
        unseen=unseen,
        minutes=minutes,
        seeds=seeds,
        backbone=backbone,
        pretrained=pretrained,
        device=device,
    )
    with _show_steps() as (say, report):
        try:
            finished = run_tryout(request, say, report)
        except KeyboardInterrupt:
            say("stopped; the same command goes on where it was")
            raise typer.Exit(INTERRUPTED) from None
    _print_result(finished)
    if show:
        typer.launch(finished.page.resolve().as_uri())


@contextmanager
def _show_steps() -> Iterator[tuple[Callable[[str], None], Callable[[str, int, int], None]]]:
    """Yields one function for sentences and one for progress; bars with time left, on the error stream."""
    from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    from stablenet.cli.console import Console, TextColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
    )
    with Progress(*columns, console=console) as bar:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield lambda text: bar.console.print(text, soft_wrap=True), report


def _print_result(finished: Tryout) -> None:
    from stablenet.cli.console import Console

    console = Console()
    console.print(finished.sentence, style="bold", soft_wrap=True)
    console.print(finished.advice, soft_wrap=True)
    console.print(f"page: {finished.page}", soft_wrap=True)
    console.print(f"diagnosis: {finished.diagnosis}", soft_wrap=True)
    console.print("the same by single commands:")
    for command in finished.commands:
        console.print(f"  {command}", soft_wrap=True)
