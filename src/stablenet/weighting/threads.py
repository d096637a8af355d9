"""How many threads of the processor a solve for one batch is worth.

Such a solve is some thousand small operations one after the other. Shared among threads, each of them waits for the
slowest thread; on a machine that does anything else at all, that wait is many times longer than the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

WORTH_SHARING = 2**20  # numbers, of which an operation reads all; a millisecond's work for one thread
WORTH_SHARING_PRODUCTS = 2**27  # multiply-adds of a few large products: ten milliseconds


@contextmanager
def fitting_threads(device: torch.device, work: int, worth: int = WORTH_SHARING) -> Iterator[None]:
    """On the processor one thread within the block, where the work is below what is worth sharing."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1 or work >= worth:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
