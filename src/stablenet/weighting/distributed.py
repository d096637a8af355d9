"""Several processes, one weight problem: every rank gathers all rows, solves the same, and takes its slice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch import distributed as dist

from stablenet.errors import UserError


def processes() -> int:
    """How many processes train together; 1 outside torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather_sizes(size: int, device: torch.device) -> list[int]:
    """The batch size of every rank. Reads the device: ranks may hold short batches, and shapes are the host's."""
    sizes = torch.zeros(processes(), dtype=torch.int64, device=device)
    with name_lost_process():
        dist.all_gather_into_tensor(sizes, torch.tensor([size], device=device))
    return [int(value) for value in sizes.tolist()]


def gather_rows(rows: Tensor, sizes: list[int]) -> Tensor:
    """All ranks' rows, in the order of the ranks.   rows: (sizes[rank], …).   Returns (Σ sizes, …), no gradient."""
    largest = max(sizes)
    padded = rows.new_zeros(largest, *rows.shape[1:])
    padded[: len(rows)] = rows.detach()
    parts = [torch.empty_like(padded) for _ in sizes]
    with name_lost_process():
        dist.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def own_slice(sizes: list[int]) -> slice:
    """This rank's rows in the gathered batch."""
    first = sum(sizes[: dist.get_rank()])
    return slice(first, first + sizes[dist.get_rank()])


def smallest(value: int, device: torch.device) -> int:
    """The smallest of all processes' numbers. Reads the device."""
    if processes() == 1:
        return value
    found = torch.tensor(value, device=device)
    with name_lost_process():
        dist.all_reduce(found, dist.ReduceOp.MIN)
    return int(found)


def sum_in_place(values: Tensor) -> None:
    """Replace numbers by their sums over all processes: whole numbers, or such as are zero in all but one of them."""
    if processes() == 1:
        return
    with name_lost_process():
        dist.all_reduce(values)


def max_in_place(values: Tensor) -> None:
    """Replace numbers by the largest of all processes."""
    if processes() == 1:
        return
    with name_lost_process():
        dist.all_reduce(values, dist.ReduceOp.MAX)


def rank() -> int:
    """This process's number; 0 outside torch.distributed."""
    return dist.get_rank() if processes() > 1 else 0


@contextmanager
def name_lost_process() -> Iterator[None]:
    """Report in one sentence that another process ended during a collective operation."""
    try:
        yield
    except RuntimeError as error:
        if not _means_lost_process(error):
            raise
        raise UserError(
            "another process of this run ended, or did not answer within the timeout, while all were at work together: "
            f"look at what it printed last, then start the run again with --resume ({error})"
        ) from error


def _means_lost_process(error: RuntimeError) -> bool:
    """Whether torch.distributed raised it because a process is gone, or the timeout is over."""
    return processes() > 1 and (
        isinstance(error, dist.DistError) or "gloo" in str(error)
    )  # gloo has no type of its own
