"""Running sums of the loss and the diagnostics, on the device: one stack and one addition a step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch import distributed as dist

GOOD = -1  # no loss so far was NaN or infinite


class Totals:
    """Means over an epoch, the latest values, and the first step whose loss was not finite.

    processes: how many train together; their values are averaged in every step, so that all hold the same sums, see a
        bad step of any of them, and go on from one checkpoint.
    """

    def __init__(self, device: torch.device, processes: int = 1) -> None:
        self._device, self._processes = device, processes
        self._names: tuple[str, ...] = ()
        self._bad_step = torch.full((), GOOD, dtype=torch.int64, device=device)
        self.clear()

    def clear(self) -> None:
        """Start a new epoch."""
        self._sums = self._counts = self._latest = torch.zeros(0, device=self._device)

    def add(self, step: int, loss: Tensor, diagnostics: Mapping[str, Tensor]) -> None:
        """Take in one step's scalars; NaN among the diagnostics counts for nothing."""
        names = ("loss", *diagnostics)
        values = torch.stack([loss.detach().float(), *(value.detach().float() for value in diagnostics.values())])
        if self._processes > 1:
            dist.all_reduce(values)
            values = values / self._processes
        if not self._sums.numel():
            self._names, self._sums, self._counts = names, torch.zeros_like(values), torch.zeros_like(values)
        assert names == self._names, f"diagnostics changed from {self._names} to {names}"
        finite = torch.isfinite(values)
        self._sums = self._sums + torch.where(finite, values, 0.0)
        self._counts = self._counts + finite
        self._bad_step = torch.where(finite[0] | (self._bad_step != GOOD), self._bad_step, step)
        self._latest = values

    def means(self) -> dict[str, float]:
        """Reads the device."""
        values = (self._sums / self._counts).tolist()
        return dict(zip(self._names, values, strict=True))

    def latest(self) -> dict[str, float]:
        """Reads the device."""
        return dict(zip(self._names, self._latest.tolist(), strict=True))

    def bad_step(self) -> int | None:
        """The first step with a loss that is not finite, if there was one. Reads the device."""
        step = int(self._bad_step)
        return None if step == GOOD else step

    def state(self) -> tuple[dict[str, Tensor], list[str]]:
        return {"sums": self._sums, "counts": self._counts}, list(self._names)

    def restore(self, tensors: Mapping[str, Tensor], names: list[str]) -> None:
        self._sums, self._counts = tensors["sums"].to(self._device), tensors["counts"].to(self._device)
        self._names = tuple(names)
