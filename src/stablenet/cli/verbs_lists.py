"""`stablenet list`, `stablenet runs`, `stablenet weights`: what is available, what was trained, and its weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stablenet.cli.completion import complete_run
from stablenet.errors import UserError, shorten_path

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from stablenet.engine.run_folder import RunLine
    from stablenet.report.inside import UsedTable

KINDS = ("methods", "recipes", "data", "splits", "backbones", "presets")
OLD_KINDS = {"settings": "splits"}  # of version 0.1


def list_parts(
    kind: Annotated[
        str | None, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}; by default all.")
    ] = None,
    match: Annotated[str, typer.Option(help="Methods, recipes, backbones: only names like this, with * and ?.")] = "*",
    timm: Annotated[bool, typer.Option("--timm", help="Also list timm's backbones.")] = False,
) -> None:
    """List everything that can be chosen by name."""
    from stablenet.cli.console import Console
    from stablenet.registry import note_renamed, unknown_name

    if kind in OLD_KINDS:
        note_renamed(kind, OLD_KINDS[kind])
        kind = OLD_KINDS[kind]
    if kind is not None and kind not in KINDS:
        raise UserError(unknown_name("kind", kind, KINDS))
    console = Console()
    for wanted in KINDS if kind is None else (kind,):
        console.print(_show(wanted, match, timm))


def _show(kind: str, match: str, timm: bool) -> Table | Text | str:
    if kind == "methods":
        return _tabulate_methods(match)
    if kind == "recipes":
        return _tabulate_recipes(match)
    if kind == "data":
        from stablenet.cli.data_output import tabulate_sources

        return tabulate_sources()
    if kind == "splits":
        from stablenet.cli.data_output import tabulate_splits

        return tabulate_splits()
    if kind == "backbones":
        from rich.text import Text

        from stablenet.models import list_backbones

        names = list_backbones(match, timm)
        own = "timm/<name> (see --timm), package.module:name for your own"
        return Text.assemble(("backbones", "bold"), f": {', '.join(names)}; {own}")
    from stablenet.weighting.settings import preset_table

    return preset_table()


def _tabulate_methods(match: str) -> Table:
    from dataclasses import fields
    from fnmatch import fnmatch

    from rich.table import Table

    from stablenet.algorithms import ALGORITHMS, MARKS, explain_marks

    table = Table("method", "what", "parameters", title="methods", caption=explain_marks("".join(MARKS)))
    for name in ALGORITHMS:
        if fnmatch(name, match):
            kind = ALGORITHMS[name]
            table.add_row(
                name + kind.marks({}), kind.title, ", ".join(field.name for field in fields(kind.settings_type)) or "–"
            )
    return table


def _tabulate_recipes(match: str) -> Table:
    from fnmatch import fnmatch

    from rich.table import Table

    from stablenet.engine.config import list_recipes

    table = Table("recipe", "what", title="recipes")
    for name, recipe in list_recipes().items():
        if fnmatch(name, match):
            table.add_row(name, recipe.title)
    return table


_COLOURS = {"finished": "green", "running": "cyan", "failed": "red", "interrupted": "yellow", "killed": "yellow"}
_COLUMNS = ("method", "seed", "state", "epochs", "best validation")
_BOXED = 500  # runs at most that are shown in a box


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of run folders.")] = Path("runs"),
) -> None:
    """List runs with their state, epochs and best source validation accuracy."""
    from stablenet.cli.console import Console
    from stablenet.engine.run_folder import list_lines

    if not folder.is_dir():
        raise UserError(f"no runs in {folder}: train one with `stablenet train`, or give another folder")
    broken: dict[Path, UserError] = {}
    lines = list(list_lines(folder, broken.__setitem__))
    if broken and not lines:
        raise next(iter(broken.values()))
    if len(lines) > _BOXED:
        _print_plainly(lines)
    else:
        Console().print(tabulate_runs(lines, f"runs in {folder}"))
    for path, error in broken.items():
        typer.secho(f"note: left out {path.name}: {error}", fg=typer.colors.YELLOW, err=True)


def tabulate_runs(lines: list[RunLine], title: str) -> Table:
    from rich.table import Column, Table
    from rich.text import Text

    table = Table(Column("run", overflow="fold"), *_COLUMNS, title=title)
    for line in lines:
        name, method, seed, state, epochs, best = _describe_run(line)
        why = f"\n{line.reason.splitlines()[0][:80]}" if line.reason and line.state == "failed" else ""
        table.add_row(name, method, seed, Text.assemble((state, _COLOURS[state]), why), epochs, best)
    return table


def _print_plainly(lines: list[RunLine]) -> None:
    """Aligned columns without a box, which would take seconds for thousands of runs."""
    rows = [("run", *_COLUMNS), *map(_describe_run, lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _describe_run(line: RunLine) -> tuple[str, ...]:
    """Cells: the run, then those of `_COLUMNS`."""
    best = line.best
    accuracy = best["validation"]["accuracy"] if best else None  # None, too, of a network that has diverged
    found = f"{100 * accuracy:.1f} % (epoch {best['epoch']})" if best and accuracy is not None else "–"
    return shorten_path(line.name), line.method, str(line.seed), line.state, f"{line.done}/{line.epochs}", found


def weights(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Run folder.", show_default=False, autocompletion=complete_run)
    ],
    csv: Annotated[Path | None, typer.Option(help="Write all samples as CSV, largest weights first.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Contact sheet of the samples weighted up and down most: .html or .png."),
    ] = None,
    per_class: Annotated[int, typer.Option(min=1, help="Images per class and direction on the sheet.")] = 8,
    root: Annotated[
        Path | None, typer.Option(envvar="STABLENET_DATA", help="Folder or archive of the data source.")
    ] = None,
) -> None:
    """Show the weights and offsets used in a run's loss."""
    from stablenet.cli.console import Console
    from stablenet.cli.outputs import check_outputs
    from stablenet.engine.run import load_run
    from stablenet.report.inside import check_sheet, read_used, write_samples, write_sheet

    check_outputs({"--csv": csv, "--output": output})
    if output is not None:
        check_sheet(output)
    opened = load_run(run)
    used = read_used(opened)
    console = Console()
    console.print(tabulate_classes(used, opened.path.name))
    if csv is not None:
        write_samples(used, csv)
        console.print(f"table: {csv}", soft_wrap=True)
    if output is not None:
        write_sheet(opened, used, output, per_class, root)
        console.print(f"sheet: {output}", soft_wrap=True)


def tabulate_classes(used: UsedTable, name: str) -> Table:
    from rich import box
    from rich.table import Table

    from stablenet.report.inside import summarise_classes

    table = Table(title=f"Weights of {name}", title_justify="left", box=box.SIMPLE)
    table.add_column("class", overflow="fold")
    for heading in ("samples", "effective", "largest\nweight", "smallest\nweight", "mean\noffset", "mean\ncontext"):
        table.add_column(heading, justify="right", no_wrap=True)
    for label, row in summarise_classes(used).iterrows():
        numbers = (f"{row[column]:.2f}" for column in ("largest", "smallest", "offset", "context"))
        table.add_row(str(label), f"{row['samples']:,.0f}", f"{100 * row['effective']:.0f} %", *numbers)
    return table
