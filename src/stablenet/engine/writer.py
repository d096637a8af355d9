"""Checkpoints and models are written by a thread of their own, so that training does not wait for the disk."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stablenet.engine.checkpoint import save_tensors

WAITING = 2  # files that may wait for the disk, so that a slow one cannot fill the memory with copies


class Writer:
    """Does what it is given, in that order. An error is raised at the next call; what waited behind it is not done.

    A killed process loses what has not been written: the files before are whole, and a run goes on from them.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._tasks: queue.Queue[Callable[[], None] | None] = queue.Queue(WAITING)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="stablenet-writer", daemon=True)
        self._thread.start()

    def save(self, path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Write tensors as they are now, with plain values that nobody changes any more."""
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        copied = torch.cuda.Event() if self._stream is not None else None
        if copied is not None:
            copied.record()
        self.do(lambda: self._save(path, copies, meta, copied))

    def do(self, task: Callable[[], None]) -> None:
        self._raise()
        self._tasks.put(task)

    def wait(self) -> None:
        """Until all that was given is done."""
        self._tasks.join()
        self._raise()

    def close(self) -> None:
        """Finish and end the thread; call it once, also after errors."""
        self._tasks.put(None)
        self._thread.join()
        self._raise()

    def _save(
        self, path: Path, copies: dict[str, Tensor], meta: Mapping[str, Any], copied: torch.cuda.Event | None
    ) -> None:
        if self._stream is None:
            save_tensors(path, copies, meta)
            return
        with torch.cuda.stream(self._stream):  # beside the training, not between its kernels
            assert copied is not None
            self._stream.wait_event(copied)
            save_tensors(path, copies, meta)

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                if task is None:
                    return
                if self._error is None:
                    task()
            except BaseException as error:
                self._error = error
            finally:
                self._tasks.task_done()

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
