"""Monitoring of a run: watchers called after every step and epoch, wall-clock timing, curves for loggers.

None of this enters the records. Watchers decide when to read metrics, because that synchronizes with the device.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from stablenet._version import __version__
from stablenet.engine.devices import name_device, uses_bf16
from stablenet.engine.loggers import LOGGERS, LogStart
from stablenet.engine.session import Session
from stablenet.engine.stepping import EpochMeans
from stablenet.files import Lines


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
        """Something a user should know of the data, before training starts."""

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
