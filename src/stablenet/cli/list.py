"""`stablenet list`: methods, recipes, data, backbones, presets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

KINDS = ("methods", "recipes", "data", "backbones", "presets")


def list_parts(
    kind: Annotated[str | None, typer.Argument(help=f"One of {', '.join(KINDS)}; all when left out.")] = None,
    match: Annotated[str, typer.Option(help="Only names like this, with * and ?.")] = "*",
    timm: Annotated[bool, typer.Option("--timm", help="Also timm's backbones.")] = False,
) -> None:
    """Everything that can be chosen by name."""
    from rich.console import Console

    from stablenet.errors import UserError
    from stablenet.registry import unknown_name

    if kind is not None and kind not in KINDS:
        raise UserError(unknown_name("kind of part", kind, KINDS))
    console = Console()
    for wanted in KINDS if kind is None else (kind,):
        console.print(_show(wanted, match, timm))


def _show(kind: str, match: str, timm: bool) -> Table | str:
    if kind == "methods":
        return _tabulate_methods(match)
    if kind == "recipes":
        return _tabulate_recipes(match)
    if kind == "data":
        from stablenet.cli.data_tables import tabulate_sources

        return tabulate_sources()
    if kind == "backbones":
        from stablenet.models import list_backbones

        names = list_backbones(match, timm)
        own = "timm/<name> (see --timm), package.module:name of your own"
        return f"[bold]backbones[/]: {', '.join(names)}; {own}"
    from stablenet.weighting.presets import preset_table

    return preset_table()


def _tabulate_methods(match: str) -> Table:
    from dataclasses import fields
    from fnmatch import fnmatch

    from rich.table import Table

    from stablenet.algorithms import ALGORITHMS

    table = Table("method", "what", "parameters", title="methods", caption="* learns from domain labels")
    for name in ALGORITHMS:
        if fnmatch(name, match):
            kind = ALGORITHMS[name]
            shown = name + "*" * kind.uses_domains
            table.add_row(shown, kind.title, ", ".join(field.name for field in fields(kind.settings_type)) or "–")
    return table


def _tabulate_recipes(match: str) -> Table:
    from fnmatch import fnmatch

    from rich.table import Table

    from stablenet.engine.recipes import list_recipes

    table = Table("recipe", "what", title="recipes")
    for name, recipe in list_recipes().items():
        if fnmatch(name, match):
            table.add_row(name, recipe.title)
    return table
