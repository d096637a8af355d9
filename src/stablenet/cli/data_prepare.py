"""`stablenet data prepare`: decode a source once into a pixel store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from stablenet.data.cache import Prepared
    from stablenet.data.store import Header


def prepare(
    source: Annotated[str, typer.Argument(help="Name of the data source; `stablenet data list` shows them.")],
    root: Annotated[
        Path | None,
        typer.Option(envvar="STABLENET_DATA", help="Folder or archive of the source; never written to."),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(help="Where to put the store; by default below STABLENET_CACHE, or ~/.cache/stablenet."),
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="Side of the stored squares; by default the images' own size.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out images that cannot be decoded, and record them.")
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one per core.")] = None,
) -> None:
    """Decode all images of SOURCE once, with all cores, into a memory-mapped store with checksums."""
    from rich.console import Console
    from rich.progress import Progress

    from stablenet.data.cache import default_store_path, prepare
    from stablenet.data.sources import read_source
    from stablenet.data.table import ComposedTable
    from stablenet.errors import UserError

    table = read_source(source, root)
    if isinstance(table, ComposedTable):
        raise UserError(f"{source} is blended from its manifest while it is read: there is nothing to prepare")
    console = Console()
    with Progress(console=console) as bar:
        task = bar.add_task(f"decoding {source}", total=len(table.rows))
        prepared = prepare(
            table,
            store or default_store_path(table, size),
            size=size,
            skip_bad=skip_bad,
            workers=workers,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
        bar.update(task, completed=len(table.rows))
    _print_result(console, prepared)


def _print_result(console: Console, prepared: Prepared) -> None:
    header = prepared.store.header
    if prepared.replaced:
        console.print(f"made anew: {prepared.replaced}", style="yellow", markup=False)
    print_notes(console, header)
    gigabytes = header.count * header.height * header.width * 3 / 1e9
    what = f"{header.count} images of {header.height} × {header.width}, {gigabytes:.2f} GB"
    state = "made" if prepared.made else "up to date"
    console.print(f"store {state}: {what}", markup=False)
    console.print(str(prepared.store.path), soft_wrap=True, markup=False, highlight=False)


def print_notes(console: Console, header: Header) -> None:
    """Which images a store had to leave out, and which are the same."""
    if header.left_out:
        console.print(f"{len(header.left_out)} images left out:", style="yellow")
        for entry in header.left_out:
            console.print(f"  {entry['id']}: {entry['reason']}", markup=False, soft_wrap=True)
    if header.duplicates:
        console.print(f"{len(header.duplicates)} images lie in more than one domain or class:", style="yellow")
        for group in header.duplicates:
            console.print(f"  {' = '.join(group)}", markup=False, soft_wrap=True)
