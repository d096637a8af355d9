"""`stablenet config show`: the whole config, every default spelled out."""

from __future__ import annotations

import typer

from stablenet.cli.verbs_train import ConfigFile, Method, Recipe, Seed, Settings, assemble

app = typer.Typer(help="Show configs.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """A callback keeps `show` a verb of its own while it is the only one."""


@app.command()
def show(
    config: ConfigFile = None,
    recipe: Recipe = None,
    method: Method = None,
    seed: Seed = None,
    settings: Settings = None,
) -> None:
    """Print the whole config of a recipe, a file and settings, as TOML that --config takes."""
    from stablenet.engine.config import format_config
    from stablenet.engine.run_data import check_config

    chosen = assemble(config, recipe, method, seed, settings)
    check_config(chosen)
    typer.echo(format_config(chosen), nl=False)
