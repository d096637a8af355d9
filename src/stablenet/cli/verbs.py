"""The verbs of `stablenet`, gathered in one application."""

from __future__ import annotations

from typing import Annotated

import typer

from stablenet._version import __version__
from stablenet.cli import verbs_bench, verbs_data, verbs_diagnose, verbs_train
from stablenet.cli.verbs_bench import paper
from stablenet.cli.verbs_diagnose import diagnose
from stablenet.cli.verbs_lists import list_parts, runs, weights
from stablenet.cli.verbs_models import evaluate, export, predict
from stablenet.cli.verbs_pages import report, saliency
from stablenet.cli.verbs_train import demo, train, try_images
from stablenet.registry import asking_for_trust

app = typer.Typer(
    name="stablenet",
    help="Models that stay accurate under distribution shift: sample weights that make features independent.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(verbs_data.app, name="data")
app.add_typer(verbs_bench.app, name="bench")
app.add_typer(verbs_diagnose.app, name="table")
app.command("try")(try_images)
app.add_typer(verbs_train.config_app, name="config")
app.command()(train)
app.command()(evaluate)
app.command()(predict)
app.command()(export)
app.command()(report)
app.command()(saliency)
app.command()(runs)
app.command()(weights)
app.command()(paper)
app.command()(demo)
app.command()(diagnose)
app.command("list")(list_parts)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"stablenet {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", envvar="STABLENET_TRUST", help="Import the modules that tables, configs and runs name."
        ),
    ] = False,
) -> None:
    """Options of the command itself; the verbs are registered below."""
    context.with_resource(asking_for_trust(trust))
