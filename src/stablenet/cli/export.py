"""`stablenet export`: a run's model in files for others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    form: Annotated[
        list[str] | None,
        typer.Option("--format", help="safetensors (default), onnx or torch; as often as wanted."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A folder; by default `export` in the run's.")
    ] = None,
    rule: Annotated[str, typer.Option(help="Which model: source-validation, last, averaged or oracle.")] = (
        "source-validation"
    ),
) -> None:
    """Write a run's model as safetensors, ONNX or torch.export, with a model card, and prove it by running it."""
    from rich.console import Console

    from stablenet.engine.runs import load_run
    from stablenet.export import FORMATS, export_run

    opened = load_run(run)
    forms = form or ["safetensors"]
    for name in forms:
        FORMATS[name]  # an unknown one is told before anything is written
    console = Console()
    for name in forms:
        with Console(stderr=True).status(f"exporting {name}"):
            exported = export_run(opened, name, output, rule)
        size = exported.file.stat().st_size / 1e6
        proof = f"{size:.1f} MB, logits within {exported.difference:.1g} of the run's model"
        console.print(f"{exported.file}  ({proof})", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{exported.card}  (model card)", markup=False, highlight=False, soft_wrap=True)
