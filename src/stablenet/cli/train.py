"""`stablenet train`: a config to its end, with a bar; or on from where it stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stablenet.engine.config import RunConfig

INTERRUPTED = 130  # what a shell expects of a program stopped by Ctrl-C


def train(
    config: Annotated[Path | None, typer.Option(help="A TOML file.", show_default=False)] = None,
    recipe: Annotated[str | None, typer.Option(help="An experiment of the paper; see `stablenet list`.")] = None,
    method: Annotated[str | None, typer.Option(help="Short for --set method.name=…")] = None,
    seed: Annotated[int | None, typer.Option(help="Short for --set seed=…")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="One setting, as train.epochs=3; may be repeated.")
    ] = None,
    root: Annotated[
        Path | None, typer.Option(envvar="STABLENET_DATA", help="Folder or archive of the data source.")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder of run folders.")] = Path("runs"),
    folder: Annotated[Path | None, typer.Option(help="This run's folder, in place of one named by its hash.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished run.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1")] = "auto",
    checkpoint_minutes: Annotated[
        float, typer.Option(min=0, help="Minutes between checkpoints inside an epoch.")
    ] = 10.0,
    keep_epochs: Annotated[bool, typer.Option("--keep-epochs", help="Keep the model of every epoch.")] = False,
    oracle: Annotated[
        bool, typer.Option("--oracle", help="Evaluate the target every epoch, into a file no selection reads.")
    ] = False,
    graphs: Annotated[bool, typer.Option("--graphs/--no-graphs", help="CUDA graphs for small networks.")] = True,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write curves into the run folder.")] = False,
) -> None:
    """Train a recipe or a config. A finished run is recognised and left alone."""
    from stablenet.cli.progress import Bar
    from stablenet.engine.interrupts import Interrupted
    from stablenet.engine.session import Runtime
    from stablenet.engine.train import train as run_training

    chosen = _assemble(config, recipe, method, seed, settings, folder if resume else None)
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
        tensorboard=tensorboard,
    )
    bar = Bar()
    try:
        run = run_training(chosen, runtime, bar)
    except Interrupted:
        bar.print_stop()
        raise typer.Exit(INTERRUPTED) from None
    bar.print_end(run)


def _assemble(
    config: Path | None,
    recipe: str | None,
    method: str | None,
    seed: int | None,
    settings: list[str] | None,
    resumed: Path | None,
) -> RunConfig:
    """The config of the options; with a run folder to resume and no other word, that folder's own."""
    from stablenet.engine.assemble import assemble_config
    from stablenet.engine.runs import load_run

    said = [*(settings or ())]
    said += [f'method.name="{method}"'] if method is not None else []
    said += [f"seed={seed}"] if seed is not None else []
    if resumed is not None and config is None and recipe is None and not said:
        return load_run(resumed).config
    return assemble_config(recipe, config, said)
