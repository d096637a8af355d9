"""Where the numbers of a run go beside its records, by Lightning's names: tensorboard, csv, wandb, mlflow.

All but `csv` are extras. A resumed run goes on where it was: values after the checkpoint are written again.
"""

from __future__ import annotations

import csv
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

from stablenet.engine.config import HASH_DIGITS, RunConfig, hash_values, walk_values
from stablenet.files import read_object, read_text, write_json, write_text
from stablenet.imports import import_extra
from stablenet.registry import Registry

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
        folder = start.folder.resolve()
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
        run = self._mlflow.start_run(run_name=start.folder.resolve().name)
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
