"""What `stablenet data` prints, where images lie and how they are read, and `stablenet data prepare`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from stablenet.cli.completion import complete_source
from stablenet.cli.console import Console
from stablenet.errors import write_count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stablenet.data.check import Finding
    from stablenet.data.manifest import Manifest
    from stablenet.data.prepare import Prepared
    from stablenet.data.sources import AnyImageList
    from stablenet.data.store import Header


Root = Annotated[
    Path | None,
    typer.Option(
        "--root",
        help="Folder or archive of the source, or the folder that contains it; published data sets are also looked up "
        "in STABLENET_DATA.",
    ),
]
ColumnNames = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        help="Your own image list: the name of a column, such as label=species; for path, label, context and part. "
        "part=none reads no given split.",
    ),
]
ListFile = Annotated[
    Path | None,
    typer.Option("--image-list", help="Your own image list, if --root is the folder where its paths begin."),
]


@dataclass(frozen=True)
class DataPlace:
    root: Path | None
    columns: list[str] | None = None
    image_list: Path | None = None

    def read(self, source: str) -> AnyImageList:
        """The image list of a source."""
        from stablenet.data.columns import Columns
        from stablenet.data.sources import read_source
        from stablenet.values import read_fields

        columns = read_fields(Columns, parse_sets(self.columns or []), "column")
        return read_source(source, self.root or default_root(source), columns, self.image_list)

    def read_if_named(self, source: str) -> AnyImageList | None:
        """The same, None where nothing says where the source lies."""
        known = self.root or self.image_list or default_root(source)
        return None if known is None else self.read(source)


def default_root(source: str) -> Path | None:
    """STABLENET_DATA holds the published data sets; users' own images are never looked up there."""
    from stablenet.data.sources import SOURCES

    folder = os.environ.get("STABLENET_DATA")
    return Path(folder) if folder and source in SOURCES and SOURCES[source].counts else None


def parse_sets(texts: list[str]) -> dict[str, Any]:
    """Nested values from `key=value` options."""
    from stablenet.engine.config import merge, parse_setting

    values: dict[str, Any] = {}
    for text in texts:
        values = merge(values, parse_setting(text))
    return values


def prepare(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Name of the data source; `stablenet data list` shows them.",
            autocompletion=complete_source,
        ),
    ],
    root: Annotated[
        Path | None,
        typer.Option(envvar="STABLENET_DATA", help="Folder or archive of the source; it is only read."),
    ] = None,
    column: ColumnNames = None,
    image_list: ListFile = None,
    store: Annotated[
        Path | None,
        typer.Option(help="Where to write the store; by default under STABLENET_CACHE, or ~/.cache/stablenet."),
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="Side of the stored square images; by default their original size.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out images that cannot be decoded, and record them.")
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one per core.")] = None,
) -> None:
    """Decode all images of SOURCE once, in parallel, into a memory-mapped store with checksums."""
    from rich.progress import Progress

    from stablenet.cli.console import Console
    from stablenet.data.image_list import ImageList
    from stablenet.data.prepare import default_store_path, prepare
    from stablenet.errors import UserError

    table = DataPlace(root, column, image_list).read(source)
    if not isinstance(table, ImageList):
        raise UserError(f"{source} is composed from a manifest when it is trained on: there is nothing to prepare")
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
        console.print(f"rebuilt: {prepared.replaced}", style="yellow")
    print_notes(console, header)
    gigabytes = header.count * header.height * header.width * 3 / 1e9
    what = f"{header.count} images of {header.height} × {header.width}, {gigabytes:.2f} GB"
    state = "made" if prepared.made else "up to date"
    console.print(f"store {state}: {what}")
    console.print(str(prepared.store.path), soft_wrap=True)


def print_notes(console: Console, header: Header) -> None:
    """Print which images a store left out, and which are duplicates."""
    if header.left_out:
        console.print(f"{write_count(len(header.left_out), 'image')} left out:", style="yellow")
        for entry in header.left_out:
            console.print(f"  {entry['id']}: {entry['reason']}", soft_wrap=True)
    if header.duplicates:
        console.print(f"{len(header.duplicates)} images appear in more than one domain or class:", style="yellow")
        for group in header.duplicates:
            console.print(f"  {' = '.join(group)}", soft_wrap=True)


def tabulate_sources() -> Table:
    from stablenet.data.sources import SOURCES

    table = Table("source", "what", "images", "download", title="data sources")
    for name in SOURCES:
        source = SOURCES[name]
        count = f"{sum(source.counts.values()):,}" if source.counts else "–"
        how = "yes" if source.downloads else ("by hand" if source.by_hand else "–")
        table.add_row(name, source.title, count, how)
    return table


def tabulate_source(name: str) -> Table:
    """All the details of one source."""
    from stablenet.data.sources import SOURCES

    source = SOURCES[name]
    table = Table.grid(Column("key"), Column("line", overflow="fold"), padding=(0, 2))
    counts = ", ".join(f"{key} {count:,}" for key, count in source.counts.items())
    lines = {
        "what": source.title,
        "origin": source.origin,
        "licence": source.licence,
        "images": counts,
        "layouts": "\n".join(source.layouts),
        "download": "\n".join(download.url for download in source.downloads),
        "by hand": source.by_hand,
        "check": f"stablenet data list {name} --check FOLDER" if source.differences is not None else "",
    }
    for key, line in lines.items():
        if line:
            table.add_row(key, line)
    return table


def tabulate_splits() -> Table:
    from dataclasses import fields

    from stablenet.data.splits import SPLITS

    table = Table("split", "what", "parameters", title="splits")
    for name in SPLITS:
        split = SPLITS[name]
        table.add_row(name, split.title, ", ".join(field.name for field in fields(split.parameters)))
    return table


def tabulate_parts(manifest: Manifest) -> Iterator[Table]:
    """Domain × class counts of every part that has images; empty domains are left out."""
    from stablenet.data.manifest import PARTS

    for part in PARTS:
        counts = manifest.counts(part)
        total = int(counts.to_numpy().sum())
        if not total:
            continue
        table = Table("domain", title=f"{part}: {total:,} images", box=box.SIMPLE_HEAD, pad_edge=False)
        for name in (*manifest.classes, "all"):
            table.add_column(name, justify="right")
        for domain, row in counts.iterrows():
            if row.sum():
                table.add_row(str(domain), *(str(n or "·") for n in row), str(row.sum()))
        table.add_section()
        table.add_row("all", *(str(n) for n in counts.sum()), str(total))
        yield table


def tabulate_dominants(manifest: Manifest) -> Table:
    """For composed sets with many domains: each class's main background in training and at test."""
    from stablenet.data.check import dominant_share

    table = Table("class", title="main background of each class, in training and at test")
    for part in ("train", "validation", "test"):
        table.add_column(part, justify="right")
    table.add_column("main in training")
    table.add_column("main at test")
    counts = {part: manifest.counts(part).sum() for part in ("train", "validation", "test")}
    train, test = dominant_share(manifest, "train"), dominant_share(manifest, "test")
    for name in manifest.classes:
        table.add_row(
            name,
            *(str(counts[part][name]) for part in counts),
            f"{train['domain'][name]} ({100 * train['share'][name]:.0f} %)",
            f"{test['domain'][name]} ({100 * test['share'][name]:.0f} %)",
        )
    return table


_JUDGED = {True: ("holds", "green"), False: ("FAILS", "red"), None: ("unknown", "yellow")}


def tabulate_findings(findings: list[Finding]) -> Table:
    table = Table("", "checked", "found")
    for finding in findings:
        table.add_row(Text(*_JUDGED[finding.holds]), finding.name, finding.detail)
    return table


def print_whole(table: Table) -> None:
    """Print a table without cutting columns off, even where it is wider than the terminal."""
    console = Console()
    needed = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
    Console(width=max(console.width, needed)).print(table)
