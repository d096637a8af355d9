"""`stablenet data`: list, download, split, check, show, and what is kept for other runs."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stablenet.cli.completion import complete_source, complete_split
from stablenet.cli.data_output import ColumnNames, DataPlace, ListFile, Root, parse_sets, prepare, print_notes
from stablenet.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from stablenet.cli.console import Console
    from stablenet.data.cache import CacheEntry
    from stablenet.data.check import Finding
    from stablenet.data.manifest import Manifest
    from stablenet.data.sources import AnyImageList


WHAT = {
    "stores": "images, decoded once",
    "features": "features of training sets, read once",
    "pictures": "images written out of data sets that hold them in tables",
    "unfinished": "left by processes that were killed, or being built",
    "downloads": "data sets in STABLENET_DATA; never cleared",
}


def print_cache() -> None:
    """The cache's place, and its size by kind."""
    from stablenet.cli.console import Console
    from stablenet.data.cache import cache_folder, list_cache

    console = Console()
    console.print(f"cache: {cache_folder()} (STABLENET_CACHE chooses another place)", soft_wrap=True)
    console.print(tabulate_cache(list_cache()))


def tabulate_cache(entries: list[CacheEntry]) -> Table:
    from rich.table import Table

    from stablenet.data.cache import KINDS, measure_folder

    table = Table("kind", "what", "entries", "size")
    for column in table.columns[2:]:
        column.justify = "right"
    counts = Counter(entry.kind for entry in entries)
    for kind in KINDS:
        size = sum(entry.size for entry in entries if entry.kind == kind)
        table.add_row(kind, WHAT[kind], str(counts[kind]), write_size(size))
    downloads = os.environ.get("STABLENET_DATA")
    if downloads:
        table.add_row("downloads", WHAT["downloads"], "", write_size(measure_folder(Path(downloads))))
    return table


def clear_cache(
    kind: Annotated[
        list[str] | None,
        typer.Option(help="stores, features, pictures or unfinished; repeatable; by default all of them."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete prepared stores and kept features; runs that need them make them again."""
    from stablenet.data.cache import KINDS, cache_folder, check_kinds, list_cache
    from stablenet.data.cache import clear_cache as clear

    check_kinds(kind or ())
    entries = [entry for entry in list_cache() if entry.kind in (kind or KINDS)]
    if not entries:
        typer.echo(f"nothing to clear in {cache_folder()}")
        return
    size = write_size(sum(entry.size for entry in entries))
    if not yes:
        typer.confirm(f"delete {len(entries)} entries, {size}, from {cache_folder()}?", abort=True)
    freed, left = clear(entries)
    typer.echo(f"{write_size(freed)} freed in {cache_folder()}")
    for entry in left:
        typer.echo(f"left, as a process is building it: {entry.path.name}")


def write_size(size: float) -> str:
    """1.2 GB"""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


app = typer.Typer(help="Download, split, check and show data sets.", no_args_is_help=True)
app.command()(prepare)
app.command("clear-cache")(clear_cache)

ManifestFile = Annotated[Path, typer.Argument(metavar="MANIFEST", help="A manifest made by `stablenet data split`.")]


@app.command("list")
def list_sources(
    name: Annotated[
        str | None,
        typer.Argument(metavar="SOURCE", help="Show the details of this source.", autocompletion=complete_source),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(help="Compare a folder or archive with the source's layout; nothing is written or decoded."),
    ] = None,
    cache: Annotated[bool, typer.Option("--cache", help="Show what is kept for other runs, and its size.")] = False,
) -> None:
    """List the data sources and splits, show the details of one source, or check a copy of it."""
    from stablenet.cli.console import Console
    from stablenet.cli.data_output import tabulate_source, tabulate_sources, tabulate_splits

    if cache:
        print_cache()
        return
    console = Console()
    if check is not None:
        _check_layout(name, check)
        return
    if name is not None:
        console.print(tabulate_source(name))
        return
    console.print(tabulate_sources())
    console.print(tabulate_splits())


def _check_layout(name: str | None, root: Path) -> None:
    from stablenet.data.sources.source import check_layout

    if name is None:
        raise UserError("--check needs the source to compare with: stablenet data list vlcs --check FOLDER")
    differences, remarks = check_layout(name, root)
    for difference in differences:
        typer.secho(f"differs: {difference}", fg=typer.colors.RED)
    for remark in remarks:
        typer.echo(remark)
    if differences:
        counted = "1 difference" if len(differences) == 1 else f"{len(differences)} differences"
        typer.echo(f"{counted}; `stablenet data list {name}` shows how {name} is laid out")
        raise typer.Exit(1)
    typer.echo(f"{root}: laid out as {name} should be")


@app.command()
def download(
    name: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A source from `stablenet data list`.", autocompletion=complete_source),
    ],
    to: Annotated[Path, typer.Option(envvar="STABLENET_DATA", help="Folder to download into.")] = Path("data"),
) -> None:
    """Download a source's public files; an interrupted download is resumed."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    from stablenet.cli.console import TextColumn
    from stablenet.data.sources import SOURCES
    from stablenet.data.sources.source import download_source

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns) as bars:
        tasks: dict[str, Any] = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=done, total=total)

        files = download_source(SOURCES[name], to, show)
    for file in files:
        typer.echo(f"{file}: complete")


@app.command()
def split(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A source from `stablenet data list`.", autocompletion=complete_source),
    ],
    split: Annotated[
        str,
        typer.Argument(
            metavar="SPLIT",
            help="A split from `stablenet data list`; by default the one that fits the source.",
            autocompletion=complete_split,
        ),
    ] = "",
    root: Root = None,
    column: ColumnNames = None,
    image_list: ListFile = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", "--out", help="Manifest to write; by default splits/<name>.tsv, named after the split."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed for the random draw.")] = 0,
    target: Annotated[list[str] | None, typer.Option(help="Target domain; flexible: CLASS=DOMAIN, repeatable.")] = None,
    dominant: Annotated[
        list[str] | None, typer.Option(help="Dominant domain; flexible: CLASS=DOMAIN, repeatable.")
    ] = None,
    ratio: Annotated[
        str | None, typer.Option(help="5:1:1; adversarial and correlated: a share such as 0.9, or random.")
    ] = None,
    validation: Annotated[float | None, typer.Option(help="Share held out for model selection.")] = None,
    published: Annotated[
        bool | None, typer.Option("--published/--no-published", help="Use the paper's counts where it lists them.")
    ] = None,
    allow_shortfall: Annotated[
        bool | None, typer.Option("--allow-shortfall", help="Use the images available where a ratio cannot be met.")
    ] = None,
    target_share: Annotated[float | None, typer.Option(help="Unbalanced: test share of the target domain.")] = None,
    targets: Annotated[int | None, typer.Option(help="Flexible: number of target domains per class.")] = None,
    test_ratio: Annotated[float | None, typer.Option(help="Adversarial: dominant ratio at test.")] = None,
    backgrounds: Annotated[int | None, typer.Option(help="Adversarial: number of backgrounds.")] = None,
    train_size: Annotated[
        int | None, typer.Option(help="Adversarial, correlated: number of training and validation images.")
    ] = None,
    test_size: Annotated[int | None, typer.Option(help="Adversarial, correlated: number of test images.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help='Any other parameter of the split: --set \'contexts=["street", "forest"]\'.'),
    ] = None,
) -> None:
    """Divide a source into training, validation and test, and write the manifest."""
    from stablenet.cli.outputs import check_outputs

    check_outputs({"--output": out}, [root, image_list])
    given = {
        "target": _parse_domains("target", target, split),
        "dominant": _parse_domains("dominant", dominant, split),
        "ratio": _parse_ratio(ratio, split),
        "validation": validation,
        "published": published,
        "allow_shortfall": allow_shortfall,
        "target_share": target_share,
        "targets": targets,
        "test_ratio": test_ratio,
        "backgrounds": backgrounds,
        "train_size": train_size,
        "test_size": test_size,
    }
    parameters = {name: value for name, value in given.items() if value is not None}
    table = DataPlace(root, column, image_list).read(source)
    _split(table, split, out, seed, parameters | parse_sets(sets or []))


def _split(table: AnyImageList, split: str, out: Path | None, seed: int, given: dict[str, Any]) -> None:
    from stablenet.data.splits import split_images

    manifest = split_images(table, split, seed, **given)
    path = out or Path("splits") / _name(manifest)
    _refuse_source_folder(path, table)
    _warn_of_duplicates(table)
    manifest.save(path)
    for note in manifest.notes:
        typer.secho(f"note: {note}", fg=typer.colors.YELLOW, err=True)
    typer.echo(f"{path}: {manifest.describe()}; hash {manifest.hash[:16]}")


@app.command()
def check(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="A manifest made by `data split`, or a store made by `data prepare`.")
    ],
    root: Root = None,
    column: ColumnNames = None,
    image_list: ListFile = None,
) -> None:
    """Check a manifest's invariants or a store's checksums; with --root also that they match the source."""
    from stablenet.cli.console import Console
    from stablenet.cli.data_output import tabulate_findings

    console = Console()
    place = DataPlace(root, column, image_list)
    findings = _check_store(path, place, console) if _is_store(path) else _check_manifest(path, place)
    console.print(tabulate_findings(findings))
    if any(finding.holds not in (True, None) for finding in findings):
        raise typer.Exit(1)


def _check_manifest(path: Path, place: DataPlace) -> list[Finding]:
    from stablenet.data.check import check_manifest
    from stablenet.data.manifest import Manifest

    manifest = Manifest.load(path)
    return check_manifest(manifest, place.read_if_named(manifest.source))


def _check_store(path: Path, place: DataPlace, console: Console) -> list[Finding]:
    from stablenet.data.image_list import ImageList
    from stablenet.data.store import PixelStore, check_store

    store = PixelStore.open(path if path.is_dir() else path.parent)
    print_notes(console, store.header)
    table = place.read_if_named(store.header.source)
    return check_store(store, table if isinstance(table, ImageList) else None)


def _is_store(path: Path) -> bool:
    """A store is a folder; one of its files may also be given."""
    return path.is_dir() or path.suffix in (".json", ".bin", ".parquet")


@app.command()
def show(
    manifest: ManifestFile,
    root: Root = None,
    column: ColumnNames = None,
    image_list: ListFile = None,
    out: Annotated[
        Path | None,
        typer.Option("--output", "-o", "--out", help="Contact sheet to write; by default <manifest>.png."),
    ] = None,
    sheet: Annotated[bool, typer.Option("--sheet/--no-sheet", help="Whether to write the contact sheet.")] = True,
) -> None:
    """Print a manifest's counts per part; write a contact sheet of its domains and classes."""
    from rich.text import Text

    from stablenet.cli.console import Console
    from stablenet.cli.data_output import print_whole, tabulate_dominants, tabulate_parts
    from stablenet.cli.outputs import check_outputs
    from stablenet.data.manifest import Manifest

    check_outputs({"--output": out}, [manifest, root, image_list])
    loaded = Manifest.load(manifest)
    console = Console()
    what = (f"{loaded.source}, {loaded.split}", "bold")
    console.print(Text.assemble(what, f", seed {loaded.seed}, hash {loaded.hash[:16]}"))
    console.print({name: value for name, value in loaded.parameters.items() if not isinstance(value, dict)})
    by_background = loaded.composed and not loaded.has_cutouts  # hundreds of domains
    for table in [tabulate_dominants(loaded)] if by_background else tabulate_parts(loaded):
        print_whole(table)
    for note in loaded.notes:
        console.print(f"note: {note}", style="yellow")
    if sheet:
        _write_sheet(loaded, DataPlace(root, column, image_list), out or manifest.with_suffix(".png"))


def _write_sheet(manifest: Manifest, place: DataPlace, sheet: Path) -> None:
    from stablenet.data.sources import SOURCES

    bundled = not SOURCES[manifest.source].needs_root
    table = place.read(manifest.source) if bundled else place.read_if_named(manifest.source)
    if table is None:
        typer.echo("no contact sheet: give the source's folder with --root")
        return
    _refuse_source_folder(sheet, table)
    from stablenet.data.contact import write_contact_sheet  # imports torch: only when there is something to draw

    write_contact_sheet(manifest, table, sheet)
    typer.echo(f"contact sheet: {sheet}")


def _parse_domains(option: str, values: list[str] | None, split: str) -> Any:
    """One name, or for the flexible splits a name (or several targets) per class."""
    if not values:
        return None
    if "flexible" not in split:
        if len(values) > 1:
            raise UserError(f"--{option} was given {len(values)} times: the split {split} takes one domain")
        return values[0]
    chosen: dict[str, list[str]] = {}
    for value in values:
        name, equals, domain = value.partition("=")
        if not equals:
            raise UserError(f"--{option} {value!r} is not of the form dog=sketch: the split {split} takes CLASS=DOMAIN")
        chosen.setdefault(name, []).append(domain)
    if option == "target":
        return {name: tuple(domains) for name, domains in chosen.items()}
    return {name: domains[-1] for name, domains in chosen.items()}


def _parse_ratio(text: str | None, split: str) -> str | float | None:
    if text is None or split not in ("adversarial", "correlated"):
        return text
    try:
        return float(text)
    except ValueError:
        return text


def _name(manifest: Manifest) -> str:
    """pacs-unbalanced-photo-5-1-1-seed0.tsv"""
    keys = [manifest.parameters.get(key) for key in ("target", "ratio")]
    words = [manifest.source, manifest.split, *(str(k) for k in keys if isinstance(k, str | float))]
    return "-".join([*words, f"seed{manifest.seed}"]).replace(":", "-") + ".tsv"


def _refuse_source_folder(path: Path, table: AnyImageList) -> None:
    from stablenet.data.image_list import ImageList

    if isinstance(table, ImageList) and table.contains(path):
        raise UserError(
            f"{path} is inside the source folder {table.root}, where StableNet never writes: choose another path"
        )


def _warn_of_duplicates(table: AnyImageList) -> None:
    from stablenet.data.check import find_duplicates, fingerprint_files
    from stablenet.data.image_list import ImageList

    if not isinstance(table, ImageList):
        return
    groups = find_duplicates(table.rows, fingerprint_files(table))
    if groups:
        typer.secho(f"warning: {len(groups)} files appear in several domains or classes:", fg="yellow", err=True)
        for group in groups:
            typer.secho("  " + " = ".join(group), fg="yellow", err=True)
