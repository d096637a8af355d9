"""Early ends of training: Ctrl-C and termination, handled between steps by all processes, and failures."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch
from torch import distributed as dist

from stablenet.engine.config import RunConfig
from stablenet.errors import UserError

_FEW = 5  # sample ids to list


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
EVERY = 5  # steps between agreements: a stop is handled soon, and most steps need no synchronization


class Interrupted(KeyboardInterrupt):
    """The run was stopped by the user; it can be resumed."""


class StopRequest:
    """Whether a stop of the run was requested."""

    def __init__(self) -> None:
        self.asked = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """Signal handler. A second Ctrl-C does not wait for the step to end."""
        if self.asked:
            raise Interrupted
        self.asked = True


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
def watch_signals() -> Iterator[StopRequest]:
    """Record SIGINT and SIGTERM while the block runs; only the main thread can handle signals."""
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
