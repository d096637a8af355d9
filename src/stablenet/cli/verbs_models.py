"""`stablenet evaluate`, `stablenet predict`, `stablenet export`: using a trained model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stablenet.cli.completion import complete_format, complete_rule, complete_run

MOST_GROUPS = 24  # listed one by one

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from rich.table import Table

    from stablenet.evaluation.evaluate import Evaluation
    from stablenet.export import PackagedModel


def evaluate(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders.", show_default=False, autocompletion=complete_run),
    ],
    rule: Annotated[
        str,
        typer.Option(
            help="Which model: source-validation, last, averaged, worst-group (needs group labels), "
            "worst-pseudo-group, or oracle (uses the target).",
            autocompletion=complete_rule,
        ),
    ] = "source-validation",
    part: Annotated[list[str] | None, typer.Option(help="Part of the split; repeatable; by default test.")] = None,
    root: Annotated[
        Path | None, typer.Option(envvar="STABLENET_DATA", help="Folder or archive of the data source.")
    ] = None,
    device: Annotated[str, typer.Option(help="The device: auto, cpu, cuda or cuda:1.")] = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Images per batch.")] = 128,
) -> None:
    """Evaluate finished runs on the target; save metrics and predictions in their folders."""
    from stablenet.cli.console import Console
    from stablenet.cli.progress import show_progress
    from stablenet.engine.run import load_run
    from stablenet.evaluation.evaluate import evaluate_run

    console = Console()
    evaluations: list[Evaluation] = []
    opened = [load_run(path) for path in runs]
    for run in opened:
        with show_progress(f"evaluating {run.path.name}") as progress:
            evaluations += evaluate_run(
                run,
                rule=rule,
                parts=part or ["test"],
                root=root,
                device=device,
                batch_size=batch_size,
                progress=progress,
            )
    console.print(tabulate_figures(evaluations))
    if len(evaluations) == 1:
        console.print(tabulate_shares(evaluations[0]))
    for note in list_failures(evaluations):
        console.print(f"note: {note}", style="yellow")
    for evaluation in evaluations:
        console.print(f"predictions: {evaluation.predictions}", soft_wrap=True)


def list_failures(evaluations: list[Evaluation]) -> Iterator[str]:
    """One sentence for each network that has not learned, or that fails on a whole group."""
    from stablenet.evaluation.evaluate import find_failures

    for evaluation in evaluations:
        for failure in find_failures(evaluation.figures):
            yield f"{evaluation.run.path.name}, {evaluation.part}: the network {failure}"


def tabulate_figures(evaluations: list[Evaluation]) -> Table:
    """One row per run and part; all rows share one rule, so the oracle never appears next to others."""
    from rich import box
    from rich.table import Table

    rule = evaluations[0].choice.rule
    style = "bold red" if rule.looks_at_target else "bold"
    table = Table(title=f"rule {rule.name}: {rule.title}", title_style=style, title_justify="left", box=box.SIMPLE)
    table.add_column("run, part", overflow="fold")
    columns = ("epoch", "images", "overall", "mean,\ndomains", "mean,\ngroups", "worst\ngroup", "gap")
    for name in (*columns, "calib.\nerror"):
        table.add_column(name, justify="right", no_wrap=True)
    for evaluation in evaluations:
        figures, groups = evaluation.figures, evaluation.figures["groups"]
        shares = (figures["accuracy"], figures["mean_domain_accuracy"], groups["mean"], groups["worst"]["accuracy"])
        table.add_row(
            f"{evaluation.run.path.name}, {evaluation.part}",
            str(evaluation.choice.epoch),
            f"{figures['count']:,}",
            *(f"{100 * share:.1f} %" for share in shares),
            f"{100 * groups['gap']:.1f}",
            f"{figures['calibration_error']:.3f}",
        )
    return table


def tabulate_shares(evaluation: Evaluation) -> Table:
    """Accuracy per class, per domain and group if there are few, and of the worst group, with Wilson intervals."""
    from rich.table import Table

    from stablenet.metrics import SMALLEST_GROUP, wilson_interval

    figures = evaluation.figures
    table = Table.grid(padding=(0, 2))
    for what in ("per_domain", "per_class"):
        for number, (name, share) in enumerate(figures.get(what, {}).items()):
            heading = what.replace("_", " ") if number == 0 else ""
            table.add_row(heading, name, f"{100 * share:5.1f} %", "█" * round(20 * share))
    groups = figures["groups"]
    for number, (name, right, count) in enumerate(list_groups(groups) if groups["number"] <= MOST_GROUPS else ()):
        low, high = (100 * bound for bound in wilson_interval(right, count))
        interval = f"{low:5.1f} to {high:5.1f} %, of {count:,}" + ", few" * (count < SMALLEST_GROUP)
        table.add_row("per group" if number == 0 else "", name, f"{100 * right / count:5.1f} %", interval)
    worst = groups["worst"]
    images = "image" if worst["count"] == 1 else "images"
    interval = f"{100 * worst['low']:.1f} to {100 * worst['high']:.1f} %, of {worst['count']:,} {images}"
    group = f"{worst['class']} on {worst['domain']}"
    table.add_row("worst group", group, f"{100 * worst['accuracy']:5.1f} %", interval)
    if groups["small"]:
        rest = "as all groups are: named with caution" if worst["small"] else "passed over for the worst group"
        table.add_row(
            "", f"{groups['small']} of {groups['number']} groups have fewer than {SMALLEST_GROUP} images,", rest
        )
    return table


def list_groups(groups: dict[str, Any]) -> Iterator[tuple[str, int, int]]:
    """ "class on domain", right and all predictions, of every group, the lowest accuracy first."""
    pairs = [
        (f"{label} on {domain}", cell["right"], cell["count"])
        for domain, cells in groups.get("per_group", {}).items()
        for label, cell in cells.items()
    ]
    yield from sorted(pairs, key=lambda pair: pair[1] / pair[2])


def predict(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="A run folder, or one that `stablenet export` wrote.", autocompletion=complete_run
        ),
    ],
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGES", help="Image files, folders, or image lists (CSV, Parquet).", show_default=False
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A .csv or .parquet file; by default CSV is printed.")
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help="Which model of a run, by rule: see `stablenet evaluate --help`; by default source-validation.",
            show_default=False,
            autocompletion=complete_rule,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="The device: auto, cpu, cuda or cuda:1.")] = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Images per batch.")] = 128,
    root: Annotated[Path | None, typer.Option(help="List: the folder where its paths begin.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out files that are not readable images.")] = False,
) -> None:
    """Predict the classes of images; write probabilities as CSV or Parquet."""
    from stablenet.cli.outputs import check_outputs
    from stablenet.evaluation.predict import check_images, check_table_path, gather_images, save_table
    from stablenet.export import load_model

    check_outputs({"--output": output}, images)
    opened = load_model(model, rule)
    if output is not None:
        check_table_path(output)
    gathered = gather_images(images, root)
    if skip_bad:
        gathered = _leave_out_broken(opened, gathered)
    else:
        check_images([Path(path) for path in gathered["path"]])
    table = _predict(opened, gathered, device, batch_size)
    if output is None:
        table.to_csv(sys.stdout, index=False)
    else:
        save_table(table, output)
    counts = ", ".join(f"{count} {name}" for name, count in table["predicted"].value_counts().items())
    where = f" → {output}" if output else ""
    typer.echo(f"{len(table)} images: {counts}{where}", err=True)


def _predict(model: PackagedModel, gathered: pd.DataFrame, device: str, batch_size: int) -> pd.DataFrame:
    from stablenet.cli.progress import show_progress
    from stablenet.evaluation.predict import add_predictions, find_device, predict_images

    with show_progress("predicting") as progress:
        logits = predict_images(
            model.network,
            [Path(path) for path in gathered["path"]],
            model.transform,
            stored_side=model.store_size,
            device=find_device(device),
            batch_size=batch_size,
            progress=progress,
        )
    return add_predictions(gathered, logits, model.classes)


def _leave_out_broken(model: PackagedModel, gathered: pd.DataFrame) -> pd.DataFrame:
    from stablenet.errors import UserError
    from stablenet.evaluation.predict import find_broken

    broken = find_broken([Path(path) for path in gathered["path"]], model.store_size)
    for message in broken.values():
        typer.secho(f"left out: {message}", fg=typer.colors.YELLOW, err=True)
    if len(broken) == len(gathered):
        raise UserError("none of the files is a readable image")
    return gathered[~gathered["path"].isin([str(path) for path in broken])].reset_index(drop=True)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", autocompletion=complete_run)],
    form: Annotated[
        list[str] | None,
        typer.Option(
            "--format", help="safetensors (default), onnx or torch; repeatable.", autocompletion=complete_format
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A folder; by default `export` in the run folder.")
    ] = None,
    rule: Annotated[
        str,
        typer.Option(
            help="Which model, by rule: see `stablenet evaluate --help`.",
            autocompletion=complete_rule,
        ),
    ] = ("source-validation"),
) -> None:
    """Export a run's model as safetensors, ONNX or torch.export, ready for a model hub, and check its outputs."""
    from stablenet.cli.console import Console
    from stablenet.engine.run import load_run
    from stablenet.export import FORMATS, export_run

    opened = load_run(run)
    forms = form or ["safetensors"]
    for name in forms:
        FORMATS[name]  # raises on an unknown name before anything is written
    console = Console()
    for name in forms:
        with Console(stderr=True).status(f"exporting {name}"):
            exported = export_run(opened, name, output, rule)
        size = exported.file.stat().st_size / 1e6
        proof = f"{size:.1f} MB, logits within {exported.difference:.1g} of the run's model"
        console.print(f"{exported.file}  ({proof})", soft_wrap=True)
    console.print(f"{exported.card}  (model card)", soft_wrap=True)
