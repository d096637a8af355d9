"""`stablenet predict`: a run's model on the user's own images."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import pandas as pd

    from stablenet.engine.runs import Run


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGES...", help="Image files, folders, or tables with a column 'path'.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A .csv or .parquet file; by default CSV is printed.")
    ] = None,
    rule: Annotated[str, typer.Option(help="Which model: source-validation, last, averaged or oracle.")] = (
        "source-validation"
    ),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    batch_size: Annotated[int, typer.Option(min=1)] = 128,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out files that are no images.")] = False,
) -> None:
    """Predict the class of images: their probabilities as CSV or Parquet."""
    from stablenet.engine.runs import load_run
    from stablenet.evaluation.images import gather_images
    from stablenet.evaluation.predictions import check_table_path, save_table

    opened = load_run(run)
    if output is not None:
        check_table_path(output)
    gathered = gather_images(images)
    if skip_bad:
        gathered = _leave_out_broken(opened, gathered)
    table = _predict(opened, gathered, rule, device, batch_size)
    if output is None:
        table.to_csv(sys.stdout, index=False)
    else:
        save_table(table, output)
    counts = ", ".join(f"{count} {name}" for name, count in table["predicted"].value_counts().items())
    where = f" → {output}" if output else ""
    typer.echo(f"{len(table)} images: {counts}{where}", err=True)


def _predict(run: Run, gathered: pd.DataFrame, rule: str, device: str, batch_size: int) -> pd.DataFrame:
    from stablenet.cli.bars import show_progress
    from stablenet.evaluation.evaluate import load_chosen
    from stablenet.evaluation.predict import find_device, predict_images
    from stablenet.evaluation.predictions import add_predictions

    model, _ = load_chosen(run, rule)
    with show_progress("predicting") as progress:
        logits = predict_images(
            model,
            [Path(path) for path in gathered["path"]],
            run.transform,
            stored_side=run.config.data.store_size,
            device=find_device(device),
            batch_size=batch_size,
            progress=progress,
        )
    return add_predictions(gathered, logits, run.classes)


def _leave_out_broken(run: Run, gathered: pd.DataFrame) -> pd.DataFrame:
    from stablenet.errors import UserError
    from stablenet.evaluation.predict import find_broken

    broken = find_broken([Path(path) for path in gathered["path"]], run.config.data.store_size)
    for message in broken.values():
        typer.secho(f"left out: {message}", fg=typer.colors.YELLOW, err=True)
    if len(broken) == len(gathered):
        raise UserError("none of the files is an image that can be read")
    return gathered[~gathered["path"].isin([str(path) for path in broken])].reset_index(drop=True)
