"""Values checked on an accelerator without waiting for it: the verdict is read when the next batch comes."""

from __future__ import annotations

import torch
from torch import Tensor

from stablenet.errors import UserError
from stablenet.weighting.inputs import Layers, nonfinite_message
from stablenet.weighting.memory import Memory

ALL_GOOD = -1


class PendingCheck:
    """The verdict on the latest batch, on its way from the device to the host.

    The device writes the index of the first bad column, or ALL_GOOD. The copy to the host is asynchronous, and reading
    it at the next call waits only for work queued before the previous backward pass: the device never idles.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._verdict: Tensor | None = None
        self._event: torch.cuda.Event | None = None
        self._layers: Layers | None = None
        self._first = False

    def watch(self, z: Tensor, layers: Layers, first: bool) -> tuple[Tensor, Tensor]:
        """z (n, m) with zeros for what is not finite, and whether all of it is (a scalar on the device).

        first: whether this batch is the memory's first, which must then be undone as a whole if it is bad.
        """
        finite = torch.isfinite(z)
        columns = finite.all(0)
        valid = columns.all()
        verdict = torch.where(valid, ALL_GOOD, columns.to(torch.int64).argmin())
        if z.device.type == "cuda":
            self._verdict = torch.empty((), dtype=torch.int64, pin_memory=True)
            self._verdict.copy_(verdict, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._verdict, self._event = verdict, None
        self._layers, self._first = layers, first
        return torch.where(finite, z, 0.0), valid

    def raise_if_bad(self, memory: Memory) -> None:
        """Raise for the batch watched last, if it was bad; its weights were ones and the memory kept none of it."""
        if self._verdict is None or self._layers is None:
            return
        if self._event is not None:
            self._event.synchronize()
        column, layers, first = int(self._verdict), self._layers, self._first
        self.clear()
        if column == ALL_GOOD:
            return
        if first:
            memory.reset()
        raise UserError(f"in the previous batch, {nonfinite_message(layers, column)}")
