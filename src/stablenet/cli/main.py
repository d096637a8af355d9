"""The command `stablenet`: gathers the verbs and turns a user's mistake into one line."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from stablenet._version import __version__
from stablenet.cli import bench, data, table
from stablenet.cli.demo import demo
from stablenet.cli.diagnose import diagnose
from stablenet.cli.evaluate import evaluate
from stablenet.cli.export import export
from stablenet.cli.list import list_parts
from stablenet.cli.predict import predict
from stablenet.cli.report import report
from stablenet.cli.runs import runs
from stablenet.cli.saliency import saliency
from stablenet.cli.train import train
from stablenet.cli.weights import weights
from stablenet.errors import UserError

app = typer.Typer(
    name="stablenet",
    help="Models that stay right when the world shifts: sample weights that make features independent.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")
app.add_typer(table.app, name="table")
app.command()(train)
app.command()(evaluate)
app.command()(predict)
app.command()(export)
app.command()(report)
app.command()(saliency)
app.command()(runs)
app.command()(weights)
app.command()(demo)
app.command()(diagnose)
app.command("list")(list_parts)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"stablenet {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the command itself; the verbs stand below."""


def run() -> None:
    """Entry point. A UserError is the user's to mend: printed without a traceback, exit status 2."""
    try:
        app()
    except UserError as error:
        typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
        sys.exit(2)
