"""`stablenet table`: stable learning on a CSV table, without code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from stablenet.tables.report import TableReport

app = typer.Typer(help="Stable learning on tables.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Stable learning on tables."""


@app.command()
def fit(
    data: Annotated[Path, typer.Argument(help="A CSV table with a header line.")],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    environment: Annotated[
        str | None, typer.Option(help="A column that names the environments (site, year, …): cross-validate by it.")
    ] = None,
    task: Annotated[str, typer.Option(help="auto, regression or classification.")] = "auto",
    method: Annotated[str, typer.Option(help="stable, dwr, srdo, or crbr (classification).")] = "stable",
    estimator: Annotated[str, typer.Option(help="linear, mlp or forest.")] = "linear",
    leave_out: Annotated[list[str] | None, typer.Option(help="A column to leave out; may be repeated.")] = None,
    categorical: Annotated[
        list[str] | None, typer.Option(help="A numeric column that holds categories; may be repeated.")
    ] = None,
    missing: Annotated[str, typer.Option(help="Missing values: error, drop the rows, or fill.")] = "error",
    seed: Annotated[int, typer.Option(help="Draws the Fourier functions.")] = 0,
    page: Annotated[Path | None, typer.Option(help="Page to write; by default beside the data, .html.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Also write the table with a column `weight` (CSV).")] = None,
    save: Annotated[Path | None, typer.Option(help="Also write the fitted model (joblib).")] = None,
) -> None:
    """Fit a table, cross-validate it by environment, write a page about it."""
    from rich.console import Console

    from stablenet.tables.page import write_page
    from stablenet.tables.report import TableChoices, fit_table, read_csv

    choices = TableChoices(
        target=target,
        environment=environment,
        task=task,
        method=method,
        estimator=estimator,
        leave_out=tuple(leave_out or ()),
        categorical=tuple(categorical or ()),
        missing=missing,
        seed=seed,
    )
    report = fit_table(read_csv(data), choices)
    where = page or data.with_suffix(".html")
    write_page(report, where)
    console = Console()
    _print(console, report)
    _write_extras(report, weights, save)
    console.print(f"page: {where}", markup=False, soft_wrap=True, highlight=False)


def _write_extras(report: TableReport, weights: Path | None, save: Path | None) -> None:
    if weights is not None:
        told: dict[str, Any] = {report.choices.target: report.y, "weight": report.model.weights_}
        report.x.assign(**told).to_csv(weights, index=False)
    if save is not None:
        import joblib  # type: ignore[import-untyped]

        joblib.dump(report.model, save)


def _print(console: Console, report: TableReport) -> None:
    from rich.table import Table

    from stablenet.tables.page import summarise

    for note in report.notes:
        console.print(f"note: {note}", style="yellow", markup=False)
    measure = "RMSE" if report.task == "regression" else "share wrong"
    table = Table("left out", "rows", "equal weights", "learned weights", title=f"{measure} on rows not seen")
    for held in report.held_out:
        table.add_row(held.name, f"{held.rows:,}", f"{held.plain:.4g}", f"{held.weighted:.4g}")
    table.add_section()
    for name, plain, weighted in summarise(report):
        table.add_row(name, "", f"{plain:.4g}", f"{weighted:.4g}")
    console.print(table)
    console.print(report.verdict, markup=False, highlight=False)
    model = report.model
    share = model.ess_ / len(report.x)
    left = model.dependence_after_ / model.dependence_before_ if model.dependence_before_ else 1.0
    console.print(f"dependence left {left:.0%}, effective sample size {model.ess_:,.0f} ({share:.0%})", highlight=False)
