"""Values checked on an accelerator without waiting for it: the verdict is read when the next batch comes."""

from __future__ import annotations

import torch
from torch import Tensor

from stablenet.errors import UserError
from stablenet.weighting.inputs import Layers, nonfinite_message
from stablenet.weighting.memory import Memory

ALL_GOOD, BAD_LABEL = -1, -2  # verdicts; any other is the index of the first column with a bad value


class PendingCheck:
    """The verdict on the latest batch, on its way from the device to the host.

    The copy to the host is asynchronous, and reading it at the next call waits only for work that was queued before the
    previous backward pass: the device never idles.
    """

    def __init__(self) -> None:
        self._event: torch.cuda.Event | None = None
        self._verdict: Tensor | None = None
        self.clear()

    def clear(self) -> None:
        self._waiting: tuple[Layers, bool] | None = None

    def watch(self, verdict: Tensor, layers: Layers, first: bool) -> None:
        """Send the verdict of a batch on its way. first: the memory's first batch, to be undone as a whole if bad."""
        if verdict.device.type == "cuda":
            if self._event is None:
                self._event = torch.cuda.Event()
                self._verdict = torch.empty((), dtype=verdict.dtype, pin_memory=True)
            assert self._verdict is not None
            self._verdict.copy_(verdict, non_blocking=True)
            self._event.record()
        else:
            self._verdict = verdict
        self._waiting = layers, first

    def raise_if_bad(self, memory: Memory) -> None:
        """Raise for the batch watched last, if it was bad; its weights were ones and the memory kept none of it."""
        if self._waiting is None or self._verdict is None:
            return
        if self._event is not None:
            self._event.synchronize()
        verdict, (layers, first) = int(self._verdict), self._waiting
        self.clear()
        if verdict == ALL_GOOD:
            return
        if first:
            memory.reset()
        if verdict == BAD_LABEL:
            raise UserError(
                f"in the previous batch, a label was beyond the {memory.label_width} classes whose labels the memory "
                "averages; build StableWeighting with num_classes"
            )
        raise UserError(f"in the previous batch, {nonfinite_message(layers, verdict)}")

    def __reduce__(self) -> tuple[type[PendingCheck], tuple[()]]:
        return PendingCheck, ()  # events belong to a device; a copy starts without a verdict
