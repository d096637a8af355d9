"""`stablenet data`: list, download, split, check, show."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stablenet.cli.data_prepare import prepare, print_notes
from stablenet.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from stablenet.data.check import Finding
    from stablenet.data.manifest import Manifest
    from stablenet.data.sources import Table

app = typer.Typer(help="Data sets, splits and what is in them.", no_args_is_help=True)
app.command()(prepare)

Root = Annotated[
    Path | None,
    typer.Option(
        "--root",
        help="Folder or archive of the source, or the folder that holds it; published data sets are also looked for "
        "in STABLENET_DATA.",
    ),
]
ManifestFile = Annotated[Path, typer.Argument(help="A manifest made by `stablenet data split`.")]


@app.command("list")
def list_sources(
    name: Annotated[str | None, typer.Argument(help="A source, to hear all about it.")] = None,
) -> None:
    """The data sources and settings there are, or all about one source."""
    from rich.console import Console

    from stablenet.cli.data_tables import tabulate_settings, tabulate_source, tabulate_sources

    console = Console()
    if name is not None:
        console.print(tabulate_source(name))
        return
    console.print(tabulate_sources())
    console.print(tabulate_settings())


@app.command()
def download(
    name: Annotated[str, typer.Argument(help="A source of `stablenet data list`.")],
    to: Annotated[Path, typer.Option(envvar="STABLENET_DATA", help="Folder the files go to.")] = Path("data"),
) -> None:
    """Fetch a source's public files; a broken download goes on where it stopped."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from stablenet.data.download import download_source
    from stablenet.data.sources import SOURCES

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns) as bars:
        tasks: dict[str, Any] = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=done, total=total)

        files = download_source(SOURCES[name], to, show)
    for file in files:
        typer.echo(f"{file}: whole")


@app.command()
def split(
    source: Annotated[str, typer.Argument(help="A source of `stablenet data list`.")],
    setting: Annotated[str, typer.Argument(help="A setting of `stablenet data list`.")],
    root: Root = None,
    out: Annotated[Path | None, typer.Option(help="Manifest to write; by default splits/<what it is>.tsv.")] = None,
    seed: Annotated[int, typer.Option(help="Another seed is another draw.")] = 0,
    target: Annotated[
        list[str] | None, typer.Option(help="Target domain; flexible: CLASS=DOMAIN, may be repeated.")
    ] = None,
    dominant: Annotated[
        list[str] | None, typer.Option(help="Dominant domain; flexible: CLASS=DOMAIN, may be repeated.")
    ] = None,
    ratio: Annotated[str | None, typer.Option(help="5:1:1; adversarial: a share such as 0.9, or random.")] = None,
    validation: Annotated[float | None, typer.Option(help="Share held out for selection.")] = None,
    published: Annotated[
        bool | None, typer.Option("--published/--no-published", help="Take the paper's counts where it lists them.")
    ] = None,
    allow_shortfall: Annotated[
        bool | None, typer.Option("--allow-shortfall", help="Take what is there where a ratio cannot be met.")
    ] = None,
    target_share: Annotated[float | None, typer.Option(help="Unbalanced: test share of the target domain.")] = None,
    targets: Annotated[int | None, typer.Option(help="Flexible: target domains per class.")] = None,
    test_ratio: Annotated[float | None, typer.Option(help="Adversarial: dominant ratio at test.")] = None,
    backgrounds: Annotated[int | None, typer.Option(help="Adversarial: how many backgrounds.")] = None,
    train_size: Annotated[int | None, typer.Option(help="Adversarial: training and validation images.")] = None,
    test_size: Annotated[int | None, typer.Option(help="Adversarial: test images.")] = None,
) -> None:
    """Split a source by a setting and write the manifest."""
    given = {
        "target": _parse_domains("target", target, setting),
        "dominant": _parse_domains("dominant", dominant, setting),
        "ratio": _parse_ratio(ratio, setting),
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
    _split(source, setting, root, out, seed, {name: value for name, value in given.items() if value is not None})


def _split(source: str, setting: str, root: Path | None, out: Path | None, seed: int, given: dict[str, Any]) -> None:
    from stablenet.data.settings import split_table
    from stablenet.data.sources import read_source

    table = read_source(source, root or _default_root(source))
    manifest = split_table(table, setting, seed, **given)
    path = out or Path("splits") / _name(manifest)
    _refuse_source_folder(path, table)
    _warn_of_duplicates(table)
    manifest.save(path)
    for note in manifest.notes:
        typer.secho(f"note: {note}", fg=typer.colors.YELLOW, err=True)
    sizes = ", ".join(f"{part} {size:,}" for part, size in manifest.rows["part"].value_counts(sort=False).items())
    typer.echo(f"{path}: {sizes}; hash {manifest.hash[:16]}")


@app.command()
def check(
    path: Annotated[Path, typer.Argument(help="A manifest made by `data split`, or a store made by `data prepare`.")],
    root: Root = None,
) -> None:
    """Prove a manifest's invariants, or a store's checksums; with --root also that the source still fits."""
    from rich.console import Console

    from stablenet.cli.data_tables import tabulate_findings

    console = Console()
    findings = _check_store(path, root, console) if _is_store(path) else _check_manifest(path, root)
    console.print(tabulate_findings(findings))
    if any(finding.holds not in (True, None) for finding in findings):
        raise typer.Exit(1)


def _check_manifest(path: Path, root: Path | None) -> list[Finding]:
    from stablenet.data.check import check_manifest
    from stablenet.data.manifest import Manifest

    manifest = Manifest.load(path)
    return check_manifest(manifest, _read_if_given(manifest.source, root))


def _check_store(path: Path, root: Path | None, console: Console) -> list[Finding]:
    from stablenet.data.check_store import check_store
    from stablenet.data.store import PixelStore
    from stablenet.data.table import ImageTable

    store = PixelStore.open(path if path.is_dir() else path.parent)
    print_notes(console, store.header)
    table = _read_if_given(store.header.source, root)
    return check_store(store, table if isinstance(table, ImageTable) else None)


def _is_store(path: Path) -> bool:
    """A store is a folder; one of its files stands for it."""
    return path.is_dir() or path.suffix in (".json", ".bin", ".parquet")


def _read_if_given(source: str, root: Path | None) -> Table | None:
    from stablenet.data.sources import read_source

    root = root or _default_root(source)
    return None if root is None else read_source(source, root)


@app.command()
def show(
    manifest: ManifestFile,
    root: Root = None,
    out: Annotated[Path | None, typer.Option(help="Contact sheet to write; by default <manifest>.png.")] = None,
    sheet: Annotated[bool, typer.Option("--sheet/--no-sheet", help="Whether to write one.")] = True,
) -> None:
    """Print a manifest's counts per part; write a contact sheet of its domains and classes."""
    from rich.console import Console

    from stablenet.cli.data_tables import print_whole, tabulate_dominants, tabulate_parts
    from stablenet.data.manifest import Manifest

    loaded = Manifest.load(manifest)
    console = Console()
    console.print(f"[bold]{loaded.source}, {loaded.setting}[/], seed {loaded.seed}, hash {loaded.hash[:16]}")
    console.print({name: value for name, value in loaded.parameters.items() if not isinstance(value, dict)})
    for table in [tabulate_dominants(loaded)] if loaded.composed else tabulate_parts(loaded):
        print_whole(table)
    for note in loaded.notes:
        console.print(f"note: {note}", style="yellow", markup=False)
    if sheet:
        _write_sheet(loaded, root, out or manifest.with_suffix(".png"))


def _write_sheet(manifest: Manifest, root: Path | None, sheet: Path) -> None:
    from stablenet.data.sources import SOURCES, read_source

    root = root or _default_root(manifest.source)
    if root is None and SOURCES[manifest.source].needs_root:
        typer.echo("no contact sheet: give the source's folder with --root to see its images")
        return
    table = read_source(manifest.source, root)
    _refuse_source_folder(sheet, table)
    from stablenet.data.contact import write_contact_sheet  # brings torch: only once there is something to draw

    write_contact_sheet(manifest, table, sheet)
    typer.echo(f"contact sheet: {sheet}")


def _default_root(source: str) -> Path | None:
    """STABLENET_DATA holds the published data sets; a user's own images are never looked for there."""
    from stablenet.data.sources import SOURCES

    folder = os.environ.get("STABLENET_DATA")
    return Path(folder) if folder and source in SOURCES and SOURCES[source].counts else None


def _parse_domains(option: str, values: list[str] | None, setting: str) -> Any:
    """One name, or for the flexible settings a name (or several targets) per class."""
    if not values:
        return None
    if "flexible" not in setting:
        if len(values) > 1:
            raise UserError(f"--{option} was given {len(values)} times: the setting {setting} takes one domain")
        return values[0]
    chosen: dict[str, list[str]] = {}
    for value in values:
        name, equals, domain = value.partition("=")
        if not equals:
            raise UserError(f"--{option} {value!r} is not like dog=sketch: the setting {setting} takes CLASS=DOMAIN")
        chosen.setdefault(name, []).append(domain)
    if option == "target":
        return {name: tuple(domains) for name, domains in chosen.items()}
    return {name: domains[-1] for name, domains in chosen.items()}


def _parse_ratio(text: str | None, setting: str) -> str | float | None:
    if text is None or setting != "adversarial":
        return text
    try:
        return float(text)
    except ValueError:
        return text


def _name(manifest: Manifest) -> str:
    """pacs-unbalanced-photo-5-1-1-seed0.tsv"""
    keys = [manifest.parameters.get(key) for key in ("target", "ratio")]
    words = [manifest.source, manifest.setting, *(str(k) for k in keys if isinstance(k, str | float))]
    return "-".join([*words, f"seed{manifest.seed}"]).replace(":", "-") + ".tsv"


def _refuse_source_folder(path: Path, table: Table) -> None:
    root: Path | None = getattr(table, "root", None)
    if root is not None and root.is_dir() and path.resolve().is_relative_to(root.resolve()):
        raise UserError(f"{path} lies in the source folder {root}, where nothing is ever written: choose another place")


def _warn_of_duplicates(table: Table) -> None:
    from stablenet.data.duplicates import find_duplicates, fingerprint_files
    from stablenet.data.table import ImageTable

    if not isinstance(table, ImageTable):
        return
    groups = find_duplicates(table.rows, fingerprint_files(table))
    if groups:
        typer.secho(f"warning: {len(groups)} files lie in several domains or classes:", fg="yellow", err=True)
        for group in groups:
            typer.secho("  " + " = ".join(group), fg="yellow", err=True)
