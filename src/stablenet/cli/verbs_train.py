"""`stablenet train`: trains one config, or resumes it. Also `config show`, `demo` and `try`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stablenet.cli.completion import complete_logger, complete_method, complete_recipe, complete_run, complete_setting
from stablenet.errors import INTERRUPTED, UserError

if TYPE_CHECKING:
    from stablenet.demo import Demo
    from stablenet.engine.config import RunConfig
    from stablenet.tryout import Tryout


ConfigFile = Annotated[Path | None, typer.Option(help="A TOML file.", show_default=False)]
Recipe = Annotated[
    str | None,
    typer.Option(help="An experiment by name; see `stablenet list recipes`.", autocompletion=complete_recipe),
]
Method = Annotated[str | None, typer.Option(help="Short for --set method.name=…", autocompletion=complete_method)]
Seed = Annotated[int | None, typer.Option(help="Short for --set seed=…")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="One setting, such as train.epochs=3; repeatable.", autocompletion=complete_setting),
]


def train(
    config: ConfigFile = None,
    recipe: Recipe = None,
    method: Method = None,
    seed: Seed = None,
    settings: Settings = None,
    root: Annotated[
        Path | None, typer.Option(envvar="STABLENET_DATA", help="Folder or archive of the data source.")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder of run folders.")] = Path("runs"),
    folder: Annotated[
        Path | None,
        typer.Option(help="This run's folder, instead of one named after its hash.", autocompletion=complete_run),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an unfinished run.")] = False,
    device: Annotated[str, typer.Option(help="The device: auto, cpu, cuda or cuda:1.")] = "auto",
    checkpoint_minutes: Annotated[
        float, typer.Option(min=0, help="Minutes between checkpoints inside an epoch.")
    ] = 10.0,
    keep_epochs: Annotated[bool, typer.Option("--keep-epochs", help="Keep the model of every epoch.")] = False,
    oracle: Annotated[
        bool,
        typer.Option("--oracle", help="Evaluate the target every epoch, into a file that model selection never reads."),
    ] = False,
    graphs: Annotated[bool, typer.Option("--graphs/--no-graphs", help="Use CUDA graphs for small networks.")] = True,
    loggers: Annotated[
        list[str] | None,
        typer.Option(
            "--logger",
            help="Also write curves: tensorboard, csv, wandb or mlflow; repeatable.",
            autocompletion=complete_logger,
        ),
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Older name of --logger tensorboard.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only show the whole config, the data, and the time expected; write nothing."),
    ] = False,
) -> None:
    """Train a recipe or a config. Finished runs are not repeated."""
    from stablenet.cli.progress import Bar, print_preview
    from stablenet.engine.interrupts import Interrupted
    from stablenet.engine.session import Runtime
    from stablenet.engine.train import train as run_training

    chosen = assemble(config, recipe, method, seed, settings, folder if resume else None)
    _refuse_unread(root, chosen)
    runtime = Runtime(
        runs=runs,
        folder=folder,
        root=root,
        device=device,
        resume=resume,
        checkpoint_minutes=checkpoint_minutes,
        keep_epochs=keep_epochs,
        oracle=oracle,
        graphs=graphs,
        loggers=_name_loggers(loggers or [], tensorboard),
    )
    if dry_run:
        print_preview(chosen, runtime)
        return
    bar = Bar()
    try:
        run = run_training(chosen, runtime, bar)
    except Interrupted:
        bar.print_stop()
        raise typer.Exit(INTERRUPTED) from None
    bar.print_end(run)


def _refuse_unread(root: Path | None, config: RunConfig) -> None:
    """A folder that was typed is for something; the variable may be for other sources."""
    from stablenet.data.sources import SOURCES

    typed = root is not None and str(root) != os.environ.get("STABLENET_DATA")
    bundled = not config.data.manifest and not SOURCES[config.data.source].needs_root  # a manifest names its own source
    if typed and bundled and not config.model.pretrained:
        raise UserError(
            f"the images of {config.data.source} are bundled, so that nothing of --root {root} would be read: for your "
            "own images add --set data.source=folder, or leave --root out"
        )


def _name_loggers(loggers: list[str], tensorboard: bool) -> tuple[str, ...]:
    if tensorboard:
        typer.echo("--tensorboard is now --logger tensorboard, and will be removed in a later version", err=True)
    return (*loggers, *["tensorboard"] * tensorboard)


def assemble(
    config: Path | None,
    recipe: str | None,
    method: str | None,
    seed: int | None,
    settings: list[str] | None,
    resumed: Path | None = None,
) -> RunConfig:
    """The config from the options; or the run folder's, when resuming with no other options."""
    from stablenet.engine.config import assemble_config, parse_setting
    from stablenet.engine.run import load_run

    said = [*(settings or ())]
    for setting in said:
        values = parse_setting(setting)
        _trust_typed(values)
        _refuse_other("--method", method, values.get("method"), "name")
        _refuse_other("--seed", seed, values, "seed")
    said += [f'method.name="{method}"'] if method is not None else []
    said += [f"seed={seed}"] if seed is not None else []
    if resumed is not None and config is None and recipe is None and not said:
        return load_run(resumed).config
    return assemble_config(recipe, config, said)


def _refuse_other(option: str, given: object, table: object, name: str) -> None:
    """An option that is short for a setting, and another value for that setting: which of them was meant?"""
    from stablenet.values import show

    if given is not None and isinstance(table, dict) and table.get(name, given) != given:
        raise UserError(
            f"{option} {given} and --set {name}={show(table[name])} contradict each other: give one of them"
        )


def _trust_typed(values: dict[str, Any]) -> None:
    """A network `package.module:name` that the user has typed may be imported."""
    from stablenet.registry import trust_module

    model = values.get("model")
    if isinstance(model, dict):
        trust_module(str(model.get("name", "")).partition(":")[0])


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the page and the runs.")] = Path("demo"),
    seeds: Annotated[int, typer.Option(min=2, help="Number of seeds, counted from 0.")] = 3,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs per run; by default the recipe's 30.", show_default=False)
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Parallel runs; by default one per core.", show_default=False)
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Train ERM and StableNet on the bundled data, a few minutes offline, and show the results."""
    from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    from stablenet.cli.console import Console, TextColumn
    from stablenet.demo import DemoSettings, run_demo
    from stablenet.demo.demo_runs import make_configs

    settings = DemoSettings(output=output, seeds=tuple(range(seeds)), epochs=epochs, workers=workers)
    names = {config.name: config.train.epochs for config in make_configs(settings)}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(f"training {len(names)} runs", total=sum(names.values()))
        done = dict.fromkeys(names, 0)

        def report(name: str, epoch: int) -> None:
            done[name] = epoch
            bar.update(task, completed=sum(done.values()))

        try:
            finished = run_demo(settings, report)
        except KeyboardInterrupt:
            typer.echo("stopped; run the same command again to resume", err=True)
            raise typer.Exit(INTERRUPTED) from None
        bar.update(task, completed=sum(names.values()))
    _print_result(finished)
    if show:
        typer.launch(finished.page.resolve().as_uri())


def _print_result(demo: Demo) -> None:
    from rich.table import Table

    from stablenet.cli.console import Console
    from stablenet.demo.demo_runs import describe_difference

    findings = demo.findings
    table = Table("accuracy in %", "held-out source", "target", title=f"{len(findings.seeds)} seeds, mean ± sd")
    for name, outcomes in (("ERM", findings.reference), ("StableNet", findings.method)):
        spreads = (findings.spread_validation(outcomes), findings.spread_target(outcomes))
        table.add_row(name, *(f"{100 * spread.mean:.1f} ± {100 * spread.deviation:.1f}" for spread in spreads))
    console = Console()
    console.print(table)
    headline, worth = describe_difference(findings.compare_target())
    console.print(f"{headline} {worth}")
    console.print(f"{demo.seconds:.0f} s; page: {demo.page.resolve()}", soft_wrap=True)


config_app = typer.Typer(help="Show configs.", no_args_is_help=True)


@config_app.callback()
def _group() -> None:
    """A callback keeps `show` a verb of its own while it is the only one."""


@config_app.command("show")
def show_config(
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


def try_images(
    place: Annotated[
        Path,
        typer.Argument(
            metavar="IMAGES", help="Images: class/image or domain/class/image, a zip archive, or a list (CSV, Parquet)."
        ),
    ],
    part: Annotated[
        str, typer.Option("--part", "--split", help="List: the column with the given split, train, validation, test.")
    ] = "",
    context: Annotated[str, typer.Option(help="List: the column with the context.")] = "",
    label: Annotated[str, typer.Option("--target", "--label", help="List: the column to predict.")] = "",
    unseen: Annotated[
        str, typer.Option(help="A context to keep out of training and test on, instead of a random share of all.")
    ] = "",
    minutes: Annotated[float, typer.Option(min=0.1, help="About how long it may take.")] = 10.0,
    seeds: Annotated[int, typer.Option(min=2, help="Number of seeds, counted from 0.")] = 3,
    root: Annotated[Path | None, typer.Option(help="List: the folder where its paths begin.")] = None,
    backbone: Annotated[str, typer.Option(help="A network; by default one that fits images and machine.")] = "",
    pretrained: Annotated[str, typer.Option(help="Its weights: imagenet, or a .safetensors or .pth file.")] = "",
    device: Annotated[str, typer.Option(help="The device: auto, cpu, cuda or cuda:1.")] = "auto",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write; by default try-NAME.", show_default=False)
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Diagnose your images, train with and without StableNet, and say what is gained."""
    from stablenet.files import resolve
    from stablenet.tryout import Request, run_tryout

    request = Request(
        place=place,
        output=output or Path(f"try-{resolve(place).stem}"),
        label=label,
        context=context,
        part=part,
        root=root,
        unseen=unseen,
        minutes=minutes,
        seeds=seeds,
        backbone=backbone,
        pretrained=pretrained,
        device=device,
    )
    with _show_steps() as (say, report):
        try:
            finished = run_tryout(request, say, report)
        except KeyboardInterrupt:
            say("stopped; the same command goes on where it was")
            raise typer.Exit(INTERRUPTED) from None
    _print_tryout(finished)
    if show:
        typer.launch(finished.page.resolve().as_uri())


@contextmanager
def _show_steps() -> Iterator[tuple[Callable[[str], None], Callable[[str, int, int], None]]]:
    """Yields one function for sentences and one for progress; bars with time left, on the error stream."""
    from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    from stablenet.cli.console import Console, TextColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
    )
    with Progress(*columns, console=console) as bar:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield lambda text: bar.console.print(text, soft_wrap=True), report


def _print_tryout(finished: Tryout) -> None:
    from stablenet.cli.console import Console

    console = Console()
    console.print(finished.sentence, style="bold", soft_wrap=True)
    console.print(finished.advice, soft_wrap=True)
    if finished.overrun:
        Console(stderr=True).print(f"note: {finished.overrun}", style="yellow", soft_wrap=True)
    console.print(f"page: {finished.page}", soft_wrap=True)
    console.print(f"diagnosis: {finished.diagnosis}", soft_wrap=True)
    console.print("the same by single commands:")
    for command in finished.commands:
        console.print(f"  {command}", soft_wrap=True)
