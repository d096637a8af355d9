"""`stablenet data list --cache` and `stablenet data clear-cache`: what is kept for other runs, and its deletion."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from stablenet.data.cache import CacheEntry

WHAT = {
    "stores": "images, decoded once",
    "features": "features of training sets, read once",
    "pictures": "images written out of data sets that hold them in tables",
    "unfinished": "left by processes that were killed, or being built",
    "downloads": "data sets in STABLENET_DATA; never cleared",
}


def print_cache() -> None:
    """The cache's place, and its size by kind."""
    from stablenet.cli.console import Console
    from stablenet.data.cache import cache_folder, list_cache

    console = Console()
    console.print(f"cache: {cache_folder()} (STABLENET_CACHE chooses another place)", soft_wrap=True)
    console.print(tabulate_cache(list_cache()))


def tabulate_cache(entries: list[CacheEntry]) -> Table:
    from rich.table import Table

    from stablenet.data.cache import KINDS, measure_folder

    table = Table("kind", "what", "entries", "size")
    for column in table.columns[2:]:
        column.justify = "right"
    counts = Counter(entry.kind for entry in entries)
    for kind in KINDS:
        size = sum(entry.size for entry in entries if entry.kind == kind)
        table.add_row(kind, WHAT[kind], str(counts[kind]), write_size(size))
    downloads = os.environ.get("STABLENET_DATA")
    if downloads:
        table.add_row("downloads", WHAT["downloads"], "", write_size(measure_folder(Path(downloads))))
    return table


def clear_cache(
    kind: Annotated[
        list[str] | None,
        typer.Option(help="stores, features or unfinished; repeatable; by default all of them."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete prepared stores and kept features; runs that need them make them again."""
    from stablenet.data.cache import KINDS, cache_folder, check_kinds, list_cache
    from stablenet.data.cache import clear_cache as clear

    check_kinds(kind or ())
    entries = [entry for entry in list_cache() if entry.kind in (kind or KINDS)]
    if not entries:
        typer.echo(f"nothing to clear in {cache_folder()}")
        return
    size = write_size(sum(entry.size for entry in entries))
    if not yes:
        typer.confirm(f"delete {len(entries)} entries, {size}, from {cache_folder()}?", abort=True)
    freed, left = clear(entries)
    typer.echo(f"{write_size(freed)} freed in {cache_folder()}")
    for entry in left:
        typer.echo(f"left, as a process is building it: {entry.path.name}")


def write_size(size: float) -> str:
    """1.2 GB"""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
