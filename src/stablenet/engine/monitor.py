"""A preview of what training would do, and monitoring of a run: watchers, wall-clock timing, curves for loggers.

A preview shows the run's folder, its data, its steps and their expected time. For it images are listed, not decoded,
and nothing is written.

Nothing of the monitoring enters the records. Watchers are called after every step and epoch; they decide when to read
metrics, because that synchronizes with the device. All loggers but `csv` are extras. A resumed run goes on where it
was: values after the checkpoint are written again.
"""

from __future__ import annotations

import csv
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import torch

from stablenet._version import __version__
from stablenet.data.loader import BatchSettings, count_batches
from stablenet.data.manifest import Manifest
from stablenet.engine.config import HASH_DIGITS, RunConfig, hash_values, walk_values
from stablenet.engine.run import Run, choose_folder, describe_config, list_runs
from stablenet.engine.run_data import check_config, open_data
from stablenet.engine.session import Runtime, Session, choose_device, name_device, uses_bf16
from stablenet.engine.stepping import EpochMeans
from stablenet.engine.trial import time_image
from stablenet.errors import UserError
from stablenet.files import Lines, read_lines, read_object, read_text, resolve, write_json, write_text
from stablenet.registry import Registry, import_extra


@dataclass(frozen=True)
class Preview:
    """folder: where the run is or would be.   state: of the run there, "" for none.
    steps_per_epoch, steps: in total, over all epochs.   device: its name.
    seconds: expected for these steps, without reading data, solving and validation.
    measured: runs that it is taken from, of the same network, method and image size on this device; 0 if it is taken
        from a few steps with random images instead.
    """

    config: RunConfig
    folder: Path
    state: str
    manifest: Manifest
    steps_per_epoch: int
    steps: int
    device: str
    seconds: float
    measured: int


def preview(config: RunConfig, runtime: Runtime) -> Preview:
    """Check and describe a run as `train` would start it."""
    check_config(config)
    check_loggers(runtime.loggers)
    manifest = open_data(config, runtime.root).manifest
    folder = choose_folder(describe_config(config, manifest, runtime.root), config, runtime.runs, runtime.folder)
    per_epoch = _count_steps(config, len(manifest.part("train")))
    total = per_epoch * config.train.epochs
    steps = min(total, config.train.max_steps or total)
    kind, chosen = choose_device(runtime.device)
    device = name_device(kind, chosen[0] if isinstance(chosen, list) else 0)
    images = steps * config.train.batch_size
    speeds = [speed for run in _list_alike(config, runtime.runs) if (speed := _read_speed(run, device)) is not None]
    return Preview(
        config=config,
        folder=folder.path,
        state=folder.read_status()["state"] if folder.config.exists() else "",
        manifest=manifest,
        steps_per_epoch=per_epoch,
        steps=steps,
        device=device,
        seconds=images / median(speeds) if speeds else images * _try_speed(config, manifest, runtime.device),
        measured=len(speeds),
    )


def _try_speed(config: RunConfig, manifest: Manifest, device: str) -> float:
    """Seconds per image."""
    kind, _ = choose_device(device)
    return time_image(
        config.model.name,
        config.network_parameters,
        config.data.image_size,
        len(manifest.classes),
        config.train.batch_size,
        kind if device == "auto" else device,
    )


def _count_steps(config: RunConfig, images: int) -> int:
    train = config.train
    settings = BatchSettings(
        batch_size=train.batch_size,
        balance_domains=train.balance_domains,
        drop_last=train.drop_last,
        most=train.epoch_steps,
    )
    steps = count_batches(images, settings)
    if steps == 0:
        raise UserError(f"{images} training images do not fill one batch of {train.batch_size}: set train.batch_size")
    return steps


def _list_alike(config: RunConfig, runs: Path) -> Iterator[Run]:
    for run in list_runs(runs, lambda path, error: None):  # one that is damaged tells no speed
        if _key(run.config) == _key(config):
            yield run


def _key(config: RunConfig) -> tuple[Any, ...]:
    """What roughly determines the speed."""
    return config.model.name, config.method.name, config.data.image_size, config.data.augment


def _read_speed(run: Run, device: str) -> float | None:
    """Images per second on this device in the run's last session, None where it was never measured."""
    lines = read_lines(run.folder.timing)
    sessions = [number for number, line in enumerate(lines) if line["kind"] == "session"]
    if not sessions or lines[sessions[-1]]["device"] != device:
        return None
    epochs = [line["images_per_second"] for line in lines[sessions[-1] :] if line["kind"] == "epoch"]
    return median(epochs) if epochs else None


PROJECT = "stablenet"  # the project of Weights & Biases, the experiment of MLflow


@dataclass(frozen=True)
class LogStart:
    """folder: of the run.   step: steps done so far."""

    folder: Path
    config: RunConfig
    step: int


class Logger(ABC):
    """A subclass is final. It is opened with a `LogStart`.   module: to be installed; its extra has the same name."""

    module: ClassVar[str] = ""

    @abstractmethod
    def __init__(self, start: LogStart) -> None: ...

    @abstractmethod
    def log(self, values: Mapping[str, float], step: int) -> None:
        """Numbers by name, such as `step/loss` and `epoch/validation/accuracy`."""

    @abstractmethod
    def close(self) -> None:
        """Everything is written when it returns."""


class TensorBoardLogger(Logger):
    """Event files in the folder `tensorboard` of the run."""

    module = "tensorboard"

    def __init__(self, start: LogStart) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(start.folder / "tensorboard"), purge_step=start.step)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class CSVLogger(Logger):
    """`metrics.csv` in the run folder, a row per step, written after every epoch."""

    def __init__(self, start: LogStart) -> None:
        self._path = start.folder / "metrics.csv"
        self._rows: dict[int, dict[str, Any]] = {}
        if self._path.exists():
            rows = csv.DictReader(StringIO(read_text(self._path)))
            kept = (row for row in rows if int(row["step"]) <= start.step)
            self._rows = {int(row["step"]): {name: value for name, value in row.items() if value} for row in kept}

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._rows.setdefault(step, {"step": step}).update(values)
        if any(name.startswith("epoch/") for name in values):
            self.close()

    def close(self) -> None:
        columns = dict.fromkeys(name for row in self._rows.values() for name in row)
        text = StringIO()
        table = csv.DictWriter(text, list(columns) or ["step"], lineterminator="\n")
        table.writeheader()
        table.writerows(self._rows.values())
        write_text(self._path, text.getvalue(), sync=False)


class WandbLogger(Logger):
    """Weights & Biases; `WANDB_MODE=offline` keeps it on this machine."""

    module = "wandb"

    def __init__(self, start: LogStart) -> None:
        folder = resolve(start.folder)
        self._run = import_logger("wandb").init(
            project=PROJECT,
            name=folder.name,
            id=hash_values({"folder": str(folder), "config": start.config.plain()})[:HASH_DIGITS],
            resume="allow",
            dir=str(folder),
            config=start.config.plain(),
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class MLFlowLogger(Logger):
    """MLflow, at the address of its variable MLFLOW_TRACKING_URI; the run folder keeps the id of the run there."""

    module = "mlflow"

    def __init__(self, start: LogStart) -> None:
        self._mlflow = import_logger("mlflow")
        known = start.folder / "mlflow.json"
        self._mlflow.set_experiment(PROJECT)
        if known.exists():
            self._mlflow.start_run(run_id=read_object(known)["run_id"])
            return
        run = self._mlflow.start_run(run_name=resolve(start.folder).name)
        write_json(known, {"run_id": run.info.run_id})
        self._mlflow.log_params({".".join(names): value for names, value in walk_values(start.config.plain())})

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics(
            {re.sub(r"[^\w\-. /:]", "_", name): value for name, value in values.items()}, step=step
        )

    def close(self) -> None:
        self._mlflow.end_run()


LOGGERS: Registry[type[Logger]] = Registry("logger")
LOGGERS.add("tensorboard", TensorBoardLogger)
LOGGERS.add("csv", CSVLogger)
LOGGERS.add("wandb", WandbLogger)
LOGGERS.add("mlflow", MLFlowLogger)


def check_loggers(names: Iterable[str]) -> None:
    """Raise for an unknown logger, and for one whose package is not installed, before anything is written."""
    for name in names:
        if LOGGERS[name].module:
            import_logger(name)


def import_logger(name: str) -> Any:
    """The package of a logger, which its extra installs."""
    module = LOGGERS[name].module
    return import_extra(module, module, f"the logger {name}")


class Curves:
    """Hands the numbers of a record to the loggers, by name and step."""

    def __init__(self, session: Session, step: int) -> None:
        names = dict.fromkeys(session.runtime.loggers if session.first else ())
        start = LogStart(session.folder.path, session.config, step)
        self._loggers = [LOGGERS[name](start) for name in names]

    def add(self, record: dict[str, Any]) -> None:
        if record["kind"] not in ("step", "epoch"):
            return
        values = {f"{record['kind']}/{name}": value for name, value in flatten(record)}
        for logger in self._loggers:
            logger.log(values, record["step"])

    def close(self) -> None:
        for logger in self._loggers:
            logger.close()


def flatten(record: dict[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    """(name, number) pairs of a record, without steps, epochs and counts."""
    pairs: list[tuple[str, float]] = []
    for name, value in record.items():
        if isinstance(value, dict):
            pairs += flatten(value, f"{prefix}{name}/")
        elif isinstance(value, float | int) and name not in ("step", "epoch", "count"):
            pairs.append((prefix + name, float(value)))
    return pairs


class Timing:
    """Writes `timing.jsonl`, and determines when the next checkpoint within an epoch is due."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lines = Lines(session.folder.timing) if session.first else None
        self._interval = 60 * session.runtime.checkpoint_minutes
        self._last_checkpoint = self._epoch_start = time.monotonic()
        self._first_step = 0
        if self._lines is not None:
            self._lines.append(self._describe())

    def start_epoch(self, step: int) -> None:
        """step: steps done so far."""
        self._epoch_start, self._first_step = time.monotonic(), step

    def end_epoch(self, epoch: int, step: int) -> None:
        """epoch: from 1.   step: steps done so far. For a resumed epoch, the part since resuming is measured."""
        device = self._session.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if self._lines is None:
            return
        seconds = time.monotonic() - self._epoch_start
        images = (step - self._first_step) * self._session.config.train.batch_size
        line = {"kind": "epoch", "epoch": epoch, "seconds": seconds, "images_per_second": images / seconds}
        if self._session.stepping.replayed:
            line["replayed_steps"] = self._session.stepping.replayed
        if device.type == "cuda":
            line["peak_gigabytes"] = torch.cuda.max_memory_allocated(device) / 1e9
        self._lines.append(line)

    def checkpoint_due(self) -> bool:
        """Whether a checkpoint is due by this process's clock; several have to agree (see `Agreement`)."""
        return time.monotonic() - self._last_checkpoint >= self._interval

    def checkpoint_done(self) -> None:
        self._last_checkpoint = time.monotonic()

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()

    def _describe(self) -> dict[str, object]:
        session = self._session
        device = session.device
        return {
            "kind": "session",
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "stablenet": __version__,
            "torch": torch.__version__,
            "device": name_device(device.type, device.index or 0),
            "precision": "bf16" if uses_bf16(session.config.train.precision, device.type) else "32",
            "processes": session.fabric.world_size,
            "threads": torch.get_num_threads(),
            "cuda_graphs": session.graphed,
        }


class Watcher:
    """Callbacks that do nothing; a progress bar overrides those it needs."""

    def decode(self, done: int, total: int) -> None:
        """Images are being decoded for the first time."""

    def tell(self, text: str) -> None:
        """A remark about the data for the user, before training starts."""

    def read(self, done: int, total: int) -> None:
        """Features of a whole part are being read, between two epochs."""

    def begin(self, folder: Path, done: int, total: int) -> None:
        """Training starts, or resumes, at step `done` of `total`."""

    def step(self, step: int, epoch: int, totals: EpochMeans) -> None:
        """A step was done (from 1)."""

    def solve(self, record: dict[str, Any]) -> None:
        """A method recorded what it computed between epochs; under "decision", what it decided and why."""

    def epoch(self, record: dict[str, Any], note: str = "") -> None:
        """An epoch was recorded.   note: a remark of the method, usually empty."""

    def end(self) -> None:
        """The run ended, for whatever reason."""
