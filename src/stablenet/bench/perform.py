"""What a worker does with one run, whoever started it: train it or go on with it, evaluate it, note its speed."""

from __future__ import annotations

import gc
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stablenet.errors import UserError
from stablenet.imports import import_own, search_folders

_PATIENCE = 60.0  # seconds to wait for a lost worker to let go of its run
_UNBORN = ("manifest.tsv", "status.json")  # all a run has before its config is written


@dataclass(frozen=True, kw_only=True)
class Order:
    """One run to be made, in plain values that travel. config: of `RunConfig`.   folder: the run's own.
    rules: selection rules to evaluate the target with; none leaves the target alone.
    speeds: file for the speed.   gigabytes: of a GPU's memory it may need.   imports: modules to import first.
    folders: absolute, where modules of the user's own are looked for.
    """

    name: str
    config: dict[str, Any]
    series: str
    folder: str
    rules: tuple[str, ...]
    speeds: str
    root: str | None = None
    device: str = "auto"
    threads: int = 1
    gigabytes: float = 0.0
    checkpoint_minutes: float = 10.0
    imports: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What became of an order. lost: its worker died more often than it is retried."""

    name: str
    state: Literal["finished", "failed", "lost"]
    reason: str = ""


def perform(order: Order) -> Outcome:
    """Carry out an order; what goes wrong in the run is told in the outcome, what kills the worker is not."""
    try:
        _perform(order)
    except UserError as error:
        return Outcome(order.name, "failed", str(error))
    except Exception as error:
        traceback.print_exc()
        return Outcome(order.name, "failed", f"{type(error).__name__}: {error}")
    finally:
        _free_memory()
    return Outcome(order.name, "finished")


def _perform(order: Order) -> None:
    import torch

    from stablenet.bench.scan import find_evaluation
    from stablenet.bench.speeds import record_speed
    from stablenet.engine.config import read_config
    from stablenet.engine.folder import RunFolder
    from stablenet.engine.session import Runtime
    from stablenet.engine.train import train
    from stablenet.evaluation.evaluate import evaluate_run

    _import_modules(order)
    torch.set_num_threads(order.threads)
    path, root = Path(order.folder), Path(order.root) if order.root else None
    _clear_unborn(path)
    _wait_for_lock(path / ".lock")
    before = RunFolder(path).read_status()["epoch"] if path.exists() else 0
    start = time.monotonic()
    runtime = Runtime(
        folder=path, root=root, device=order.device, resume=True, checkpoint_minutes=order.checkpoint_minutes
    )
    run = train(read_config(order.config), runtime)
    for rule in order.rules:
        if find_evaluation(path, rule) is None:
            evaluate_run(run, rule=rule, root=root, device=order.device)
    record_speed(Path(order.speeds), run, order.series, time.monotonic() - start, before)


def _import_modules(order: Order) -> None:
    """The folders are searched without imports too: the network may be one's own."""
    folders = [Path(folder) for folder in order.folders]
    search_folders(folders)
    for module in order.imports:
        import_own(module, folders)


def _clear_unborn(path: Path) -> None:
    """A worker killed before it wrote the config leaves files nobody can go on from."""
    if path.exists() and not (path / "config.json").exists():
        for name in _UNBORN:
            (path / name).unlink(missing_ok=True)


def _wait_for_lock(path: Path) -> None:
    """A worker that lost its node may live a moment longer; the engine refuses a run that is held after that."""
    from stablenet.files import is_locked

    deadline = time.monotonic() + _PATIENCE
    while is_locked(path) and time.monotonic() < deadline:
        time.sleep(0.2)


def _free_memory() -> None:
    """The next run of this worker, or another one's on the same GPU, needs what this one held."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
