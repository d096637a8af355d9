"""What `stablenet train` prints: progress bars, and what `--dry-run` shows of a run."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeRemainingColumn

from stablenet.cli.console import Console, TextColumn
from stablenet.data.manifest import PARTS
from stablenet.engine.config import RunConfig, format_config
from stablenet.engine.identity import tell_weights
from stablenet.engine.monitor import Preview, Watcher, preview
from stablenet.engine.ranking import find_best
from stablenet.engine.run import Run
from stablenet.engine.session import Runtime
from stablenet.engine.stepping import EpochMeans
from stablenet.errors import write_count
from stablenet.evaluation.evaluate import find_failures
from stablenet.long_work import format_time


@contextmanager
def show_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a function to call with the number done and the total; the bar disappears when the block ends."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from stablenet.cli.console import Console, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


READ_SECONDS = 2.0  # between two readings of the metrics, each of which makes the host wait for the device
BAR_SECONDS = 0.2  # between two updates of the bar


class Bar(Watcher):
    """A bar over all steps, and a line for every epoch."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        columns = TextColumn("{task.description}"), BarColumn(12), MofNCompleteColumn(), TimeRemainingColumn()
        self._progress = Progress(*columns, TextColumn("{task.fields[figures]}"), console=self._console)
        self._task: TaskID | None = None
        self._decoding: TaskID | None = None
        self._reading: TaskID | None = None
        self._last_read = self._last_move = 0.0
        self.steps_done = 0

    def decode(self, done: int, total: int) -> None:
        if self._decoding is None:
            self._progress.start()
            self._decoding = self._progress.add_task("decoding images", total=total, figures="")
        self._progress.update(self._decoding, completed=done)

    def tell(self, text: str) -> None:
        if _is_first():
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def read(self, done: int, total: int) -> None:
        if self._reading is None:
            self._reading = self._progress.add_task("reading features", total=total, figures="")
        self._progress.update(self._reading, completed=done)
        if done == total:
            self._progress.remove_task(self._reading)
            self._reading = None

    def begin(self, folder: Path, done: int, total: int) -> None:
        self.steps_done = done
        self._console.print(f"{'resuming' if done else 'training'} in {folder}", soft_wrap=True)
        if self._decoding is not None:
            self._progress.remove_task(self._decoding)
        self._progress.start()
        self._task = self._progress.add_task("training", total=total, completed=done, figures="")

    def step(self, step: int, epoch: int, totals: EpochMeans) -> None:
        assert self._task is not None
        self.steps_done = step
        now = time.monotonic()
        if now - self._last_read >= READ_SECONDS:
            self._last_read = now
            figures = {name: value for name, value in totals.latest().items() if name != "accuracy"}
            self._progress.update(self._task, figures=describe_figures(figures))
        if now - self._last_move >= BAR_SECONDS:
            self._last_move = now
            self._progress.update(self._task, completed=step, description=f"epoch {epoch}")

    def solve(self, record: dict[str, Any]) -> None:
        if "decision" in record:
            does = "acts" if record["acts"] else "trains plainly"
            self._console.print(f"StableNet {does}: {record['decision']}")

    def epoch(self, record: dict[str, Any], note: str = "") -> None:
        validation = record["validation"]
        shown = f"{100 * validation['accuracy']:.1f} %" if validation else "none"
        train = describe_figures(record["train"])
        shown += f" ({note})" if note else ""
        self._console.print(f"epoch {record['epoch']:3d}  {train}  validation {shown}")

    def end(self) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=self.steps_done)
        self._progress.stop()

    def print_stop(self) -> None:
        """One line, from the first process only."""
        if _is_first():
            message = f"stopped after step {self.steps_done}; continue with the same command and --resume"
            Console(stderr=True, soft_wrap=True).print(message)

    def print_end(self, run: Run) -> None:
        """The result, from the first process only: the run's folder and its source validation accuracy."""
        if not _is_first():
            return
        best = find_best(run.records)
        how = "no validation part"
        if best is not None:
            figures = best["validation"]
            weighted = figures.get("weighted_accuracy")
            under = "" if weighted is None else f", {100 * weighted:.1f} % under weights,"
            how = f"best source validation {100 * figures['accuracy']:.1f} %{under} after epoch {best['epoch']}"
        averaged = [record for record in run.records if record["kind"] == "averaged"]
        if averaged:
            how += f", averaged weights {100 * averaged[-1]['validation']['accuracy']:.1f} %"
        failures = [] if best is None else find_failures(best["validation"], "held-out image")
        notes = "".join(f"note: the network {failure}\n" for failure in failures)
        word = "trained" if self._task is not None else "already finished, nothing to do"
        Console(soft_wrap=True).print(f"{word}: {how}\n{notes}{run.path}")


def _is_first() -> bool:
    """Whether this is the one process that prints, of those torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def describe_figures(values: dict[str, float]) -> str:
    """loss 0.420  accuracy 87%  dependence 9.7 → 6.6  ess 61%: metrics of the training batches, as methods name them.

    accuracy and <name>_ratio are shown as percentages; <name>_before and <name>_after as a pair. What there is not yet
    (NaN), as the dependence before a first solve, is left out.
    """
    parts = [f"loss {values['loss']:.3f}"]
    values = {name: value for name, value in values.items() if not math.isnan(value)}
    for name, value in values.items():
        stem, _, kind = name.rpartition("_")
        if name == "accuracy" or kind == "ratio":
            parts.append(f"{stem or name} {100 * value:.0f} %")
        elif kind == "before" and f"{stem}_after" in values:
            parts.append(f"{stem} {value:.3g} → {values[f'{stem}_after']:.3g}")
        elif name != "loss" and not (kind == "after" and f"{stem}_before" in values):
            parts.append(f"{name.replace('_', ' ')} {value:.3g}")
    return "  ".join(parts)


def print_preview(config: RunConfig, runtime: Runtime) -> None:
    found = preview(config, runtime)
    typer.echo(format_config(config))
    for line in (*tell_weights(config, runtime.root), *describe_preview(found)):
        typer.echo(f"# {line}")


def describe_preview(found: Preview) -> Iterator[str]:
    manifest, train = found.manifest, found.config.train
    counts = {part: int((manifest.rows["part"] == part).sum()) for part in PARTS}
    images = ", ".join(f"{part} {count:,}" for part, count in counts.items() if count)
    yield f"run folder: {found.folder} ({found.state or 'new'})"
    yield f"data: {manifest.source}, split {manifest.split}, seed {manifest.seed}; images: {images}"
    yield f"{write_count(len(manifest.classes), 'class')}, {write_count(len(manifest.domains), 'domain')}"
    yield from (f"note: {note}" for note in manifest.notes)
    yield f"steps: {found.steps:,} in all, {found.steps_per_epoch:,} per epoch, of {train.batch_size} images"
    yield f"time: {describe_time(found)}"
    yield "a dry run: nothing was written"


def describe_time(found: Preview) -> str:
    runs = "1 run" if found.measured == 1 else f"{found.measured} runs"
    basis = f"{runs} like this one" if found.measured else "a few steps with random images"
    return f"about {format_time(found.seconds)} of training steps, from {basis} on {found.device}"
