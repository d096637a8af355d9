"""`stablenet diagnose`: is there context in this data that predicts the label, and would StableNet help?"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stablenet.errors import UserError

if TYPE_CHECKING:
    from stablenet.diagnose import Diagnosis

Report = Callable[[str, int, int], None]


def diagnose(
    data: Annotated[
        str,
        typer.Argument(
            help="A folder or zip of images (class/image or domain/class/image), a CSV file, or a named source."
        ),
    ],
    label: Annotated[str, typer.Option(help="CSV: the column to predict.")] = "label",
    context: Annotated[str | None, typer.Option(help="CSV: a column that names the context.")] = None,
    leave_out: Annotated[list[str] | None, typer.Option(help="CSV: a column to leave out; may be repeated.")] = None,
    setting: Annotated[str, typer.Option(help="Named source: diagnose the training part of this setting.")] = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter of the setting, as ratio=0.9; may be repeated.")
    ] = None,
    manifest: Annotated[Path | None, typer.Option(help="Named source: diagnose this split's training part.")] = None,
    root: Annotated[Path | None, typer.Option(help="Folder of a named source; by default STABLENET_DATA.")] = None,
    backbone: Annotated[str, typer.Option(help="A network whose first stages give the features, as resnet50.")] = "",
    pretrained: Annotated[str, typer.Option(help="Its weights: imagenet, or a .safetensors file.")] = "",
    limit: Annotated[int, typer.Option(min=100, help="Look at no more images than this, drawn at random.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Draws the images, and a table's functions.")] = 0,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("diagnosis.html"),
) -> None:
    """Say whether context predicts the label in this data, and whether StableNet would help. Trains nothing."""
    from stablenet.diagnose.page import write_page

    start = time.perf_counter()
    with _show_steps() as report:
        if _is_plain_table(data):
            found = _diagnose_table(Path(data), label, context, tuple(leave_out or ()), seed, report)
        else:
            subject = _open(data, label, context, setting, settings, manifest, root)
            found = _diagnose_images(subject, backbone, pretrained, root, limit, seed, report)
    write_page(found, output, "stablenet " + shlex.join(sys.argv[1:]), time.perf_counter() - start)
    _print(found, output)


def _is_plain_table(data: str) -> bool:
    """A CSV file without a column `path`: its columns are the features."""
    path = Path(data)
    if path.suffix != ".csv" or not path.is_file():
        return False
    with path.open(encoding="utf-8") as file:
        return "path" not in [name.strip().strip('"') for name in file.readline().rstrip("\r\n").split(",")]


def _diagnose_table(
    path: Path, label: str, context: str | None, leave_out: tuple[str, ...], seed: int, report: Report
) -> Diagnosis:
    from stablenet.diagnose.tables import TableChoices, diagnose_table
    from stablenet.tables.report import read_csv

    choices = TableChoices(label=label, context=context, leave_out=leave_out, seed=seed)
    return diagnose_table(read_csv(path), choices, path.stem, report)


def _open(
    data: str,
    label: str,
    context: str | None,
    setting: str,
    settings: list[str] | None,
    manifest: Path | None,
    root: Path | None,
) -> Any:
    from stablenet.diagnose.subject import is_source, open_place, open_source
    from stablenet.engine.assemble import parse_setting

    if not is_source(data):
        if setting or settings or manifest:
            raise UserError(f"{data} is no named source: --setting, --set and --manifest split one of those")
        return open_place(Path(data), label, context)
    if context is not None:
        raise UserError(f"{data} names its contexts itself, its domains: leave --context out")
    given = {name: value for text in settings or () for name, value in parse_setting(text).items()}
    folder = os.environ.get("STABLENET_DATA")
    return open_source(data, root or (Path(folder) if folder else None), manifest, setting, given)


def _diagnose_images(
    subject: Any, backbone: str, pretrained: str, root: Path | None, limit: int, seed: int, report: Report
) -> Diagnosis:
    from stablenet.diagnose.images import ImageChoices, diagnose_images

    choices = ImageChoices(backbone=backbone, pretrained=pretrained, root=root, limit=limit, seed=seed)
    return diagnose_images(subject, choices, report)


@contextmanager
def _show_steps() -> Iterator[Report]:
    """Yields a function that is told what is done, how many, of how many; one bar per step, on the error stream."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield report


def _print(found: Diagnosis, page: Path) -> None:
    from rich.console import Console

    console = Console()
    for note in found.notes:
        console.print(f"note: {note}", style="yellow", markup=False)
    console.print(found.verdict.headline, style="bold", markup=False)
    for reason in found.verdict.reasons:
        console.print(f"- {reason}", markup=False, highlight=False)
    console.print(found.verdict.advice, markup=False, highlight=False)
    console.print(f"page: {page}", markup=False, soft_wrap=True, highlight=False)
