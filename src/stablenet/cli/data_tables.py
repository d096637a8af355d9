"""Rich tables for the verbs of `stablenet data`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stablenet.data.check import Finding
    from stablenet.data.manifest import Manifest


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
    """Everything one source says of itself."""
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
    }
    for key, line in lines.items():
        if line:
            table.add_row(key, escape(line))
    return table


def tabulate_settings() -> Table:
    from dataclasses import fields

    from stablenet.data.settings import SETTINGS

    table = Table("setting", "what", "parameters", title="settings")
    for name in SETTINGS:
        setting = SETTINGS[name]
        table.add_row(name, setting.title, ", ".join(field.name for field in fields(setting.parameters)))
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
    """For composed sets with their many domains: the main background of each class in training beside test."""
    from stablenet.data.check import dominant_share

    table = Table("class", title="main background of each class: training beside test")
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
            f"{train['domain'][name]} ({train['share'][name]:.0%})",
            f"{test['domain'][name]} ({test['share'][name]:.0%})",
        )
    return table


_JUDGED = {True: "[green]holds[/]", False: "[red]FAILS[/]", None: "[yellow]not known[/]"}


def tabulate_findings(findings: list[Finding]) -> Table:
    table = Table("", "checked", "found")
    for finding in findings:
        table.add_row(_JUDGED[finding.holds], escape(finding.name), escape(finding.detail))
    return table


def print_whole(table: Table) -> None:
    """Print a table without cutting columns off, even where it is wider than the terminal."""
    console = Console()
    needed = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
    Console(width=max(console.width, needed)).print(table)
