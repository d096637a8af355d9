"""Early ends of training: Ctrl-C and termination, handled between steps by all processes, and failures."""

from __future__ import annotations

import _thread
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch
from torch import distributed as dist

from stablenet.engine.config import RunConfig
from stablenet.errors import INTERRUPTED, UserError

_FEW = 5  # sample ids to list
_STOPS = (signal.SIGINT, signal.SIGTERM)
_LOOK = 0.1  # seconds between two looks at whether the work at hand has ended
_LAST = 3.0  # seconds to end after a second signal


class NonFiniteLoss(UserError):
    """A loss that is NaN or infinite."""


def name_batch(step: int, epoch: int, batch: int, ids: list[str], saved: bool) -> NonFiniteLoss:
    """The error for a non-finite loss. step, epoch, batch: from 1.   saved: whether a checkpoint exists."""
    some = ", ".join(ids[:_FEW]) + (" …" if len(ids) > _FEW else "")
    return NonFiniteLoss(
        f"the loss was not finite at step {step} (epoch {epoch}, batch {batch} with {some}): training stopped, "
        f"{'the last good checkpoint is kept' if saved else 'before its first checkpoint'}; "
        "lower train.learning_rate, or check these images"
    )


def name_epoch(epoch: int, best: int) -> NonFiniteLoss:
    """The error for a non-finite validation loss.   epoch, best: from 1; best 0 before the first good one."""
    return NonFiniteLoss(
        f"the validation loss was not finite after epoch {epoch}: the network has diverged, training stopped, "
        f"{f'the model of epoch {best} is kept' if best else 'no model was good'}; lower train.learning_rate"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on the GPU or the CPU."""
    cpu = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or cpu


def explain_memory(config: RunConfig) -> UserError:
    size = config.train.batch_size
    if size == 1:
        return UserError(
            "out of memory with one image per batch: use smaller images (data.image_size) or a smaller model"
        )
    return UserError(
        f"out of memory with batches of {size}: try --set train.batch_size={size // 2} and, because the batch is half "
        f"as large, --set train.learning_rate={config.train.learning_rate / 2:g}"
    )


NOTHING, CHECKPOINT, STOP = range(3)  # what a process may request after a step; a stop writes a checkpoint too
PATIENCE = 1.0  # seconds for which a requested stop waits for a first step, and after the usual time of others
EVERY = 5  # steps between agreements: a stop is handled soon, and most steps need no synchronization


class Interrupted(KeyboardInterrupt):
    """The run was stopped by the user; it can be resumed."""


class StopRequest:
    """Whether a stop of the run was requested, by a signal.

    It is handled after the step. A step or a solve that takes longer than earlier ones is interrupted, at the cost of
    what was computed since the last checkpoint; with several processes it is not, because the others would wait.
    A second signal interrupts the current work.
    """

    def __init__(self, processes: int = 1) -> None:
        self.asked = False
        self._longest = 0.0 if processes == 1 else math.inf  # seconds that a step or a solve has taken
        self._patience = math.inf  # seconds after which the work at hand is broken off
        self._breaking = False  # whether the next signal is the guard's own

    def note(self, number: int, frame: FrameType | None) -> None:
        """Signal handler."""
        late, self._breaking = self._breaking and math.isinf(self._patience), False
        if late:  # the work has ended meanwhile
            return
        if self.asked:
            raise Interrupted
        self.asked = True

    @contextmanager
    def breakable(self) -> Iterator[None]:
        """Work of any length, which may be interrupted."""
        start, self._patience = time.monotonic(), PATIENCE + 2 * self._longest
        try:
            yield
        finally:
            self._patience = math.inf
        self._longest = max(self._longest, time.monotonic() - start)

    def guard(self, signals: socket.socket) -> None:
        """The life of a thread.   signals: where the number of each arrives at once, whatever the main thread does.

        A library that computes for long lets no handler through: three seconds after a second signal the process ends.
        """
        asked = math.inf
        while (arrived := _read_signal(signals)) is not None:
            if arrived and asked < math.inf:
                if _read_signal(signals, _LAST) is not None:
                    os._exit(INTERRUPTED)
                return
            if arrived:
                asked = time.monotonic()
            elif time.monotonic() - asked > self._patience:
                self._breaking = True
                _thread.interrupt_main(signal.SIGINT)
                _read_signal(signals)  # which is this one


def _read_signal(signals: socket.socket, seconds: float = _LOOK) -> bool | None:
    """Whether a stop was requested within some seconds; None once the training has ended."""
    signals.settimeout(seconds)
    try:
        number = signals.recv(1)
    except TimeoutError:
        return False
    return number[0] in _STOPS if number else None


class Agreement:
    """What the processes of a run do together after a step: the maximum of their requests.

    processes: number of processes. With one, its request applies at once. Several reduce their requests every few steps
    and read the outcome one step later: by then a GPU has it, and computes the later step while it is read.
    """

    def __init__(self, device: torch.device, processes: int) -> None:
        self._device, self._processes = device, processes
        self._outcome: torch.Tensor | None = None  # on the host; None if no requests were reduced
        self._copied = torch.cuda.Event() if device.type == "cuda" else None

    def reach(self, step: int, *, stop: bool, checkpoint: bool) -> int:
        """What to do after step `step`, the same in all processes; call after every step with own requests."""
        request = STOP if stop else CHECKPOINT if checkpoint else NOTHING
        if self._processes == 1:
            return request
        outcome = self._read()
        if step % EVERY == 0:
            self._ask(request)
        return outcome

    def _ask(self, request: int) -> None:
        joined = torch.full((), request, device=self._device)
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
def watch_signals(processes: int = 1) -> Iterator[StopRequest]:
    """Record SIGINT and SIGTERM while the block runs; only the main thread can handle signals."""
    request = StopRequest(processes)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    inlet, outlet = socket.socketpair()
    inlet.setblocking(False)
    guard = threading.Thread(target=request.guard, args=(outlet,), daemon=True)
    handlers = {number: signal.signal(number, request.note) for number in _STOPS}
    wakeup = signal.set_wakeup_fd(inlet.fileno(), warn_on_full_buffer=False)
    guard.start()
    try:
        yield request
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        inlet.close()
        guard.join()
        outlet.close()
