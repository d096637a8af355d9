"""How much memory a solve over a whole set may take, beside the features it is given.

The budget chooses how a set is solved, in one piece or chunk by chunk, and how much of what a chunk needs is kept from
one step to the next. The first changes results by rounding alone, the second not at all.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Annotated

import torch

from stablenet.errors import UserError

UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
# By default a share of what is free, since training needs some too; and no more than this, so that machines with much
# memory and very much memory solve alike.
SHARE_OF_FREE = 0.5
LARGEST_DEFAULT = 4 * 2**30


@dataclass(frozen=True)
class Size:
    """An amount of memory in words: a number and a unit."""

    def holds(self, value: str) -> bool:
        return _parse(value) is not None

    def __str__(self) -> str:
        return f"an amount of memory such as '4GiB' or '500MiB' (units {', '.join(UNITS)})"


MemorySize = Annotated[str, Size()]


def read_size(text: str) -> int:
    """The number of bytes in '4GiB'.

    >>> read_size("1.5GiB") == 3 * 2**29
    True
    """
    found = _parse(text)
    if found is None:
        raise UserError(f"memory must be {Size()}, got {text!r}")
    return found


def _parse(text: object) -> int | None:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]iB)\s*", text) if isinstance(text, str) else None
    size = int(float(match[1]) * UNITS[match[2]]) if match else 0
    return size or None


def show_size(size: float) -> str:
    """Bytes as `read_size` reads them, rounded up.

    >>> show_size(2**30 + 1), show_size(3 * 2**20)
    ('1.01GiB', '3MiB')
    """
    unit = next((unit for unit in ("TiB", "GiB", "MiB") if size >= UNITS[unit]), "KiB")
    hundredths = -int(-size * 100 // UNITS[unit])
    return f"{hundredths / 100:.4g}{unit}" if hundredths < 10_000 else f"{-(-hundredths // 100)}{unit}"


def choose_budget(memory: str | None, device: torch.device) -> int:
    """The bytes that a solve may take: what the user gave, or a share of what is free."""
    if memory is not None:
        return read_size(memory)
    return min(LARGEST_DEFAULT, int(SHARE_OF_FREE * free_memory(device)))


def free_memory(device: torch.device) -> int:
    """Bytes that could be allocated on the device now; where the system does not say, twice the largest default."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            found = re.search(r"MemAvailable:\s*(\d+) kB", file.read())
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) * 2**10
    if "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(LARGEST_DEFAULT / SHARE_OF_FREE)


def require_budget(budget: int, least: int, what: str) -> None:
    """Refuse a budget in which the solve does not fit."""
    if budget < least:
        raise UserError(
            f"{what} needs at least {show_size(least)} beside the features, and its budget is {show_size(budget)}: "
            f"set memory to {show_size(least)!r} or more, or free some memory"
        )
