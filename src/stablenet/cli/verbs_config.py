"""`stablenet config show`: the whole config, every default spelled out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stablenet.cli.verbs_train import assemble

app = typer.Typer(help="Show configs.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """A callback keeps `show` a verb of its own while it is the only one."""


@app.command()
def show(
    config: Annotated[Path | None, typer.Option(help="A TOML file.", show_default=False)] = None,
    recipe: Annotated[str | None, typer.Option(help="An experiment of the paper; see `stablenet list`.")] = None,
    method: Annotated[str | None, typer.Option(help="Short for --set method.name=…")] = None,
    seed: Annotated[int | None, typer.Option(help="Short for --set seed=…")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="One setting, such as train.epochs=3; repeatable.")
    ] = None,
) -> None:
    """Print the whole config of a recipe, a file and settings, as TOML that --config takes."""
    from stablenet.engine.config import format_config
    from stablenet.engine.run_data import check_config

    chosen = assemble(config, recipe, method, seed, settings)
    check_config(chosen)
    typer.echo(format_config(chosen), nl=False)
