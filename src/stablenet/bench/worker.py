"""What a worker does with one run, whoever started it: train it or go on with it, evaluate it, note its speed.

`python -m stablenet.bench.worker` is the process of `LocalExecutor`: it takes orders and tells every finished epoch and
the outcome. When its input closes it ends; a run under way stops at a checkpoint.
"""

from __future__ import annotations

import gc
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from stablenet.engine.watch import Watcher
from stablenet.errors import UserError
from stablenet.imports import import_own, search_folders
from stablenet.processes import Send, Server

_PATIENCE = 60.0  # seconds to wait for a lost worker to let go of its run
_UNBORN = ("manifest.tsv", "status.json")  # all a run has before its config is written


@dataclass(frozen=True, kw_only=True)
class RunOrder:
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
class RunOutcome:
    """What became of an order. lost: its worker died more often than it is retried."""

    name: str
    state: Literal["finished", "failed", "lost"]
    reason: str = ""


def perform(order: RunOrder, watcher: Watcher | None = None) -> RunOutcome:
    """Carry out an order; what goes wrong in the run is told in the outcome, what kills the worker is not."""
    try:
        _perform(order, watcher)
    except UserError as error:
        return RunOutcome(order.name, "failed", str(error))
    except Exception as error:
        traceback.print_exc()
        return RunOutcome(order.name, "failed", f"{type(error).__name__}: {error}")
    finally:
        _free_memory()
    return RunOutcome(order.name, "finished")


def _perform(order: RunOrder, watcher: Watcher | None) -> None:
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
    run = train(read_config(order.config), runtime, watcher)
    for rule in order.rules:
        if find_evaluation(path, rule) is None:
            evaluate_run(run, rule=rule, root=root, device=order.device)
    record_speed(Path(order.speeds), run, order.series, time.monotonic() - start, before)


def _import_modules(order: RunOrder) -> None:
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


class RunWorker(Watcher):
    """Performs orders that come as plain values, and tells of their epochs."""

    def __init__(self, tell: Send) -> None:
        self._tell = tell

    def epoch(self, record: dict[str, Any], note: str = "") -> None:
        self._tell({"epoch": record["epoch"]})

    def perform(self, values: dict[str, Any]) -> dict[str, Any]:
        return asdict(perform(read_order(values), self))


def read_order(values: dict[str, Any]) -> RunOrder:
    """An order that travelled as JSON, which has lists where an order has tuples."""
    lists: dict[str, Any] = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return RunOrder(**values | lists)


if __name__ == "__main__":
    sys.exit(Server(lambda values, tell: RunWorker(tell).perform(values)).run())
