"""Ctrl-C and termination, taken note of and obeyed between two steps: by all processes after the same one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch
from torch import distributed as dist

NOTHING, CHECKPOINT, STOP = range(3)  # what a process may want between two steps; a stop leaves a checkpoint too
EVERY = 5  # steps from one agreement to the next: a stop is obeyed soon, and most steps wait for nobody


class Interrupted(KeyboardInterrupt):
    """The run was stopped by its user; it can be resumed."""


class StopRequest:
    """Whether somebody asked the run to stop."""

    def __init__(self) -> None:
        self.asked = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """A second Ctrl-C does not wait for the step to end."""
        if self.asked:
            raise Interrupted
        self.asked = True


class Agreement:
    """What the processes of a run do together after a step: the most that one of them wants.

    processes: how many train together. One does what it wants, at once. Several put their wishes together every few
    steps and read the outcome one step later: a GPU has it by then, and has the later step to do while it is read.
    """

    def __init__(self, device: torch.device, processes: int) -> None:
        self._device, self._processes = device, processes
        self._outcome: torch.Tensor | None = None  # on the host; None when no wishes were put together
        self._copied = torch.cuda.Event() if device.type == "cuda" else None

    def reach(self, step: int, *, stop: bool, checkpoint: bool) -> int:
        """What to do after step `step`, the same in every process; to be called after each, with this one's wishes."""
        wish = STOP if stop else CHECKPOINT if checkpoint else NOTHING
        if self._processes == 1:
            return wish
        outcome = self._read()
        if step % EVERY == 0:
            self._ask(wish)
        return outcome

    def _ask(self, wish: int) -> None:
        joined = torch.full((), wish, device=self._device)
        dist.all_reduce(joined, op=dist.ReduceOp.MAX)
        self._outcome = torch.empty_like(joined, device="cpu", pin_memory=self._copied is not None)
        self._outcome.copy_(joined, non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def _read(self) -> int:
        if self._outcome is None:
            return NOTHING
        if self._copied is not None:
            self._copied.synchronize()
        outcome, self._outcome = int(self._outcome), None
        return outcome


@contextmanager
def watch_signals() -> Iterator[StopRequest]:
    """Note SIGINT and SIGTERM while the block runs; only the main thread may listen to signals."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
