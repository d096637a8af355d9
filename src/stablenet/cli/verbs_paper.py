"""`stablenet paper`: everything the paper shows, the command of each, and what of it has been measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stablenet.bench import BenchResult
    from stablenet.bench.paper_list import PaperItem

COMPARED = (
    "paper-resnet50",
    *(f"ablation-{name}-{data}" for data in ("mnistm", "pacs") for name in ("fourier", "linear", "memory")),
)


def paper(
    runs: Annotated[Path, typer.Option(help="Folder of run folders, whose results are counted.")] = Path("runs"),
    page: Annotated[
        Path | None,
        typer.Option(help="Write a Markdown page instead, with the paper's numbers beside those of the runs."),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(envvar="STABLENET_DATA", help="Folder or archive of the data sources.")
    ] = None,
) -> None:
    """List the paper's tables and figures: commands, what they need, GPU hours, and what has been measured."""
    from stablenet.bench import collect, find_table, list_tables
    from stablenet.bench.collect import scan_runs
    from stablenet.bench.paper_list import list_items

    if page is None:
        scan = scan_runs(runs)
        tables = list_tables() if scan.runs else {}
        filled = {name: collect(table, runs, root=root, scan=scan) for name, table in tables.items()}
        for item in list_items():
            typer.echo("\n".join(describe_item(item, filled)))
        typer.echo(
            "GPU hours: three seeds, every row the paper prints, one H200, estimated from the cost of single steps"
        )
        return
    from stablenet.errors import UserError
    from stablenet.files import write_text
    from stablenet.report.paper_page import write_comparison

    if not runs.is_dir():
        raise UserError(f"there are no runs in {runs}: make some with `stablenet bench run paper-resnet50`")
    scan = scan_runs(runs)
    results = [collect(find_table(name), runs, root=root, scan=scan) for name in COMPARED]
    write_text(page, write_comparison(results))
    measured = sum(cell.state == "measured" for result in results for cell in result.cells.values())
    typer.echo(f"page: {page}, {measured} cells with results")


def describe_item(item: PaperItem, results: Mapping[str, BenchResult]) -> Iterator[str]:
    """Lines about a table or figure.   results: filled tables by name; none where there are no runs."""
    from stablenet.bench.paper_list import count_cells

    yield f"{item.name}: {item.what}"
    for command in item.commands:
        yield f"    {command}"
    told = [f"needs {', '.join(item.needs)}"] if item.needs else []
    told += [f"about {item.hours:.1f} GPU hours"] if item.hours is not None else []
    told += [f"measured here: {item.state}" if item.measured else item.state] if item.state else []
    if told:
        yield f"    {'; '.join(told)}"
    counted = count_cells(item, results) if results else ""
    if counted:
        yield f"    cells with results in your runs: {counted}"
