"""Where runs can be carried out on this machine: cores, or GPUs by their memory."""

from __future__ import annotations

import os
from dataclasses import dataclass

from stablenet.errors import UserError

_USED_SHARE = 0.92  # of a GPU's free memory: the allocator's pieces do not fit without a rest
_MOST_ON_GPU = 8  # beyond that, runs of one GPU only take each other's time


@dataclass(frozen=True)
class Place:
    """device: cpu, cuda:0 …   capacity: gigabytes for runs, None where memory is not what limits them.
    most: runs at once.
    """

    device: str
    capacity: float | None
    most: int


def find_places(
    device: str = "auto", jobs: int | None = None, per_gpu: int | None = None, threads: int = 1
) -> list[Place]:
    """jobs: on the CPU, runs at once; None takes as many as there are cores for their threads.
    per_gpu: runs at once on one GPU; None takes as many as fit its memory.
    """
    from stablenet.engine.devices import choose_device

    for name, number in (("jobs", jobs), ("per-gpu", per_gpu), ("threads", threads)):
        if number is not None and number < 1:
            raise UserError(f"--{name} must be at least 1, got {number}")
    kind, chosen = choose_device(device)
    if kind == "cpu":
        return [Place("cpu", None, jobs or max(1, count_cores() // threads))]
    import torch

    numbers = chosen if isinstance(chosen, list) else range(torch.cuda.device_count())
    return [Place(f"cuda:{number}", _free_gigabytes(number), per_gpu or _MOST_ON_GPU) for number in numbers]


def count_cores() -> int:
    """Cores this process may use, which on shared machines are fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_gigabytes(number: int) -> float:
    import torch

    free, _ = torch.cuda.mem_get_info(number)
    return _USED_SHARE * free / 1e9
