"""What `stablenet train --dry-run` prints: the config as TOML, and what is known of the run as its comments."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from stablenet.data.manifest import PARTS
from stablenet.engine.config import RunConfig, format_config
from stablenet.engine.preview import Preview, preview
from stablenet.engine.session import Runtime
from stablenet.long_work import format_time


def print_preview(config: RunConfig, runtime: Runtime) -> None:
    found = preview(config, runtime)
    typer.echo(format_config(config))
    for line in describe_preview(found):
        typer.echo(f"# {line}")


def describe_preview(found: Preview) -> Iterator[str]:
    manifest, train = found.manifest, found.config.train
    counts = {part: int((manifest.rows["part"] == part).sum()) for part in PARTS}
    images = ", ".join(f"{part} {count:,}" for part, count in counts.items() if count)
    yield f"run folder: {found.folder} ({found.state or 'new'})"
    yield f"data: {manifest.source}, split {manifest.split}, seed {manifest.seed}; images: {images}"
    yield f"{len(manifest.classes)} classes, {len(manifest.domains)} domains"
    yield from (f"note: {note}" for note in manifest.notes)
    yield f"steps: {found.steps:,} in all, {found.steps_per_epoch:,} per epoch, of {train.batch_size} images"
    yield f"time: {describe_time(found)}"
    yield "a dry run: nothing was written"


def describe_time(found: Preview) -> str:
    if found.seconds is None:
        return f"unknown; no run like this one was measured on {found.device}"
    runs = "1 run" if found.measured == 1 else f"{found.measured} runs"
    return f"about {format_time(found.seconds)} of training steps, from {runs} like this one on {found.device}"
