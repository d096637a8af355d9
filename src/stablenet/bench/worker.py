"""A worker's side of a run: train or resume it, evaluate it, and record its speed.

`python -m stablenet.bench.worker` is the process of `LocalExecutor`: it receives orders, and reports every finished
epoch and the outcome. It ends when its input closes; a run in progress stops at a checkpoint. The recorded speeds, one
line per finished run, are used to estimate the time of further runs.
"""

from __future__ import annotations

import gc
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from stablenet.bench.cells import CellRun
from stablenet.engine.config import RunConfig
from stablenet.engine.monitor import Watcher
from stablenet.engine.run import Run
from stablenet.errors import UserError
from stablenet.files import Lines, read_lines
from stablenet.processes import Send, Server
from stablenet.registry import import_own, search_folders
from stablenet.values import read_fields

_CONTEXT_GIGABYTES = 0.8  # GPU memory of a process in addition to its tensors
_GIGABYTES_AT_224 = 14.0  # ResNet-18, batches of 128 images of 224 pixels: a guess before the first measurement
_LEAST_GIGABYTES = 1.5


@dataclass(frozen=True, kw_only=True)
class Speed:
    """seconds_per_epoch: of the whole run, with start and evaluation, possibly while sharing its device.
    series: hash of the config without its seed.   peak_gigabytes: of the GPU, None on the CPU.
    """

    series: str
    recipe: str
    source: str
    model: str
    image_size: int
    batch_size: int
    method: str
    device: str
    stablenet: str
    seconds_per_epoch: float
    images_per_second: float
    peak_gigabytes: float | None

    def resembles(self, config: RunConfig) -> bool:
        """Whether method, network, source and image size are the same: similar work on another split."""
        same = (config.data.source, config.model.name, config.data.image_size, config.method.name)
        return same == (self.source, self.model, self.image_size, self.method)


@dataclass(frozen=True)
class Estimate:
    """basis: "measured" with the same config, "similar" with another split or parameters of the same method."""

    seconds: float
    basis: Literal["measured", "similar"]
    device: str


def speeds_path(runs: Path) -> Path:
    return runs / ".bench" / "speeds.jsonl"


def record_speed(path: Path, run: Run, series: str, seconds: float, before: int) -> None:
    """Record the speed of a finished run.   seconds: of this session.   before: epochs done before it."""
    epochs = int(run.status["epoch"]) - before
    timing = read_lines(run.folder.timing)
    lines = [line for line in timing if line["kind"] == "epoch"][-epochs:]
    if epochs < 1 or not lines:
        return
    session = [line for line in timing if line["kind"] == "session"][-1]
    speed = Speed(
        series=series,
        recipe=run.config.label,
        source=run.manifest.source,
        model=run.config.model.name,
        image_size=run.config.data.image_size,
        batch_size=run.config.train.batch_size,
        method=run.config.method.name,
        device=session["device"],
        stablenet=session["stablenet"],
        seconds_per_epoch=seconds / epochs,
        images_per_second=median(line["images_per_second"] for line in lines),
        peak_gigabytes=max((line["peak_gigabytes"] for line in lines if "peak_gigabytes" in line), default=None),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    file = Lines(path)
    file.append(asdict(speed))
    file.close()


def read_speeds(path: Path) -> list[Speed]:
    """All recorded speeds, the latest last."""
    return [read_fields(Speed, line) for line in read_lines(path)]


def estimate(speeds: Sequence[Speed], run: CellRun, device: str) -> Estimate | None:
    """Estimate the time of a whole run by the median of measured ones, preferring this device, then the same config.

    None if no similar run has been measured.
    """
    chosen, basis = _find_alike(speeds, run, device)
    if not chosen:
        return None
    return Estimate(
        median(speed.seconds_per_epoch for speed in chosen) * run.config.train.epochs, basis, chosen[-1].device
    )


def guess_gigabytes(speeds: Sequence[Speed], run: CellRun, device: str) -> float:
    """Estimate a run's GPU memory from similar runs, or else a conservative guess from the image size."""
    alike, _ = _find_alike([speed for speed in speeds if speed.peak_gigabytes is not None], run, device)
    if alike:
        return max(speed.peak_gigabytes or 0.0 for speed in alike) + _CONTEXT_GIGABYTES
    config = run.config
    images = config.train.batch_size / 128 * (config.data.image_size / 224) ** 2
    return max(_LEAST_GIGABYTES, _GIGABYTES_AT_224 * images)


def _find_alike(
    speeds: Sequence[Speed], run: CellRun, device: str
) -> tuple[list[Speed], Literal["measured", "similar"]]:
    here = [speed for speed in speeds if speed.device == device]
    for among in (here, speeds):
        same = [speed for speed in among if speed.series == run.series]
        if same:
            return _latest_device(same), "measured"
        similar = [speed for speed in among if speed.resembles(run.config)]
        if similar:
            return _latest_device(similar), "similar"
    return [], "similar"


def _latest_device(speeds: Sequence[Speed]) -> list[Speed]:
    return [speed for speed in speeds if speed.device == speeds[-1].device]


_PATIENCE = 60.0  # seconds to wait for a lost worker to release its run
_UNBORN = ("manifest.tsv", "status.json")  # the files of a run before its config is written


@dataclass(frozen=True, kw_only=True)
class RunOrder:
    """One run to execute, in plain values. config: of `RunConfig`.   folder: of the run.
    rules: selection rules with which to evaluate the target; if empty, the target is not read.
    speeds: file for the speed.   gigabytes: estimated GPU memory.   imports: modules to import first.
    folders: absolute, searched for the user's own modules.
    figures_only: no checkpoints, and no networks once they are evaluated.
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
    figures_only: bool = False


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of an order. lost: its worker died more often than the number of retries."""

    name: str
    state: Literal["finished", "failed", "lost"]
    reason: str = ""


def perform(order: RunOrder, watcher: Watcher | None = None) -> RunOutcome:
    """Execute an order; errors of the run are reported in the outcome."""
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

    from stablenet.bench.collect import find_evaluation
    from stablenet.engine.config import read_config
    from stablenet.engine.run_folder import RunFolder
    from stablenet.engine.session import Runtime
    from stablenet.engine.train import train
    from stablenet.evaluation.evaluate import evaluate_rules

    _import_modules(order)
    torch.set_num_threads(order.threads)
    path, root = Path(order.folder), Path(order.root) if order.root else None
    _clear_unborn(path)
    _wait_for_lock(path / ".lock")
    before = RunFolder(path).read_status()["epoch"] if path.exists() else 0
    start = time.monotonic()
    runtime = Runtime(
        folder=path,
        root=root,
        device=order.device,
        resume=True,
        checkpoint_minutes=order.checkpoint_minutes,
        figures_only=order.figures_only,
    )
    run = train(read_config(order.config), runtime, watcher)
    missing = [rule for rule in order.rules if find_evaluation(path, rule) is None]
    if missing:
        evaluate_rules(run, missing, root=root, device=order.device)
    if order.figures_only:
        for file in path.glob("*.safetensors"):
            file.unlink()
    record_speed(Path(order.speeds), run, order.series, time.monotonic() - start, before)


def _import_modules(order: RunOrder) -> None:
    """Import the order's modules. The folders are searchable without imports too, for users' own networks."""
    folders = [Path(folder) for folder in order.folders]
    search_folders(folders)
    for module in order.imports:
        import_own(module, folders)


def _clear_unborn(path: Path) -> None:
    """Remove the files left by a worker that was killed before it wrote the config: they cannot be resumed."""
    if path.exists() and not (path / "config.json").exists():
        for name in _UNBORN:
            (path / name).unlink(missing_ok=True)


def _wait_for_lock(path: Path) -> None:
    """Wait for a lost worker that may still be running; after that, the engine refuses a locked run."""
    from stablenet.files import is_locked

    deadline = time.monotonic() + _PATIENCE
    while is_locked(path) and time.monotonic() < deadline:
        time.sleep(0.2)


def _free_memory() -> None:
    """Free the run's memory for the next run of this worker, or for others on the same GPU."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class RunWorker(Watcher):
    """Executes orders given as plain values, and reports their epochs."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def epoch(self, record: dict[str, Any], note: str = "") -> None:
        self._send({"epoch": record["epoch"]})

    def perform(self, values: dict[str, Any]) -> dict[str, Any]:
        return asdict(perform(read_order(values), self))


def read_order(values: dict[str, Any]) -> RunOrder:
    """Parse an order from its JSON values, which have lists instead of tuples."""
    lists: dict[str, Any] = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return RunOrder(**values | lists)


if __name__ == "__main__":
    sys.exit(Server(lambda values, send: RunWorker(send).perform(values)).run())
