"""Wall-clock matters, kept out of the records: what did the run, how quickly, and when a checkpoint is due."""

from __future__ import annotations

import platform
import time

import torch

from stablenet._version import __version__
from stablenet.engine.devices import uses_bf16
from stablenet.engine.session import Session
from stablenet.files import Lines


class Timing:
    """Writes `timing.jsonl`, and knows when the next checkpoint inside an epoch is due."""

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
        """epoch: from 1.   step: steps done so far. Resumed epochs tell of what was done since they were resumed."""
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
        """By this process's clock: several have to agree (see `Agreement`)."""
        return time.monotonic() - self._last_checkpoint >= self._interval

    def checkpoint_done(self) -> None:
        self._last_checkpoint = time.monotonic()

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()

    def _describe(self) -> dict[str, object]:
        session = self._session
        device = session.device
        name = (
            torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
        )
        return {
            "kind": "session",
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "stablenet": __version__,
            "torch": torch.__version__,
            "device": f"{device.type}: {name}",
            "precision": "bf16" if uses_bf16(session.config.train.precision, device.type) else "32",
            "processes": session.fabric.world_size,
            "threads": torch.get_num_threads(),
            "cuda_graphs": session.graphed,
        }
