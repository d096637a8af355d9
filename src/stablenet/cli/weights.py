"""`stablenet weights`: what entered a run's loss, by class and as a contact sheet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from stablenet.report.sample_weights import UsedTable


def weights(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", show_default=False)],
    csv: Annotated[Path | None, typer.Option(help="Write all samples as CSV, those raised most first.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Contact sheet of the samples raised and lowered most: .html or .png."),
    ] = None,
    per_class: Annotated[int, typer.Option(min=1, help="Images of a class and side on the sheet.")] = 8,
    root: Annotated[
        Path | None, typer.Option(envvar="STABLENET_DATA", help="Folder or archive the data source lies in.")
    ] = None,
) -> None:
    """Show the weights and offsets that entered a run's loss."""
    from rich.console import Console

    from stablenet.engine.runs import load_run
    from stablenet.report.sample_weights import check_sheet, read_used, write_csv, write_sheet

    if output is not None:
        check_sheet(output)
    opened = load_run(run)
    used = read_used(opened)
    console = Console()
    console.print(tabulate_classes(used, opened.path.name))
    if csv is not None:
        write_csv(used, csv)
        console.print(f"table: {csv}", markup=False, highlight=False, soft_wrap=True)
    if output is not None:
        write_sheet(opened, used, output, per_class, root)
        console.print(f"sheet: {output}", markup=False, highlight=False, soft_wrap=True)


def tabulate_classes(used: UsedTable, name: str) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from stablenet.report.sample_weights import summarise_classes

    table = Table(title=f"weights of {escape(name)}", title_justify="left", box=box.SIMPLE)
    table.add_column("class", overflow="fold")
    for heading in ("samples", "effective", "largest\nweight", "smallest\nweight", "mean\noffset", "mean\ncontext"):
        table.add_column(heading, justify="right", no_wrap=True)
    for label, row in summarise_classes(used).iterrows():
        numbers = (f"{row[column]:.2f}" for column in ("largest", "smallest", "offset", "context"))
        table.add_row(escape(str(label)), f"{row['samples']:,.0f}", f"{100 * row['effective']:.0f} %", *numbers)
    return table
