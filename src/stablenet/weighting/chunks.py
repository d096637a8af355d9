"""Features of a whole set, read chunk by chunk within a memory budget, and sums that do not depend on their order.

A chunk is a fixed range of sample indices. Each of several processes holds some of the chunks. Partial sums of chunks
are added as whole numbers of a fixed small unit: such additions are exact, hence the same in any order, and any number
of processes finds the same bits.

The budget determines whether a set is solved in one piece or chunk by chunk, and how much of what a chunk needs is kept
from one step to the next. The first changes results only by rounding, the second not at all.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from stablenet.errors import UserError
from stablenet.weighting import distributed

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


CHUNK_ROWS = 32_768
BITS = 61  # of a sum; 63 there are, and rounding needs some


def by_device(sizes: Mapping[str, int], device: torch.device) -> int:
    """The size that is for the device's kind, where one is for "cpu" and one for "cuda" and all others."""
    return sizes["cpu" if device.type == "cpu" else "cuda"]


@dataclass(frozen=True)
class Chunk:
    """Places start … stop − 1 among the n samples, and where the first of them lies among the stored rows."""

    start: int
    stop: int
    stored: int

    def __len__(self) -> int:
        return self.stop - self.start


class Rows:
    """Features of n samples, in the order of their indices; in several processes those of this process's chunks.

    stored: (r, m), on the device or not: rows are converted to `dtype` and moved when they are read.
    chosen: (n',) which stored rows they are, in order; None for all.
    chunks: this process's; None for one chunk of all samples.   total: n, when other processes hold some.
    several: whether there are more chunks than one, here and elsewhere.
    apart: whether the set is too large for one piece, so that it is to be `divided`.
    shared: whether several processes hold it together.
    """

    def __init__(
        self,
        stored: Tensor,
        *,
        device: torch.device | None = None,
        chosen: Tensor | None = None,
        chunks: list[Chunk] | None = None,
        total: int | None = None,
        several: bool = False,
        apart: bool = False,
        shared: bool = False,
    ) -> None:
        self._stored, self._chosen = stored, None if chosen is None else chosen.to(stored.device)
        held = len(stored) if chosen is None else len(chosen)
        self.device = stored.device if device is None else device
        self.total = held if total is None else total
        self.chunks = [Chunk(0, held, 0)] if chunks is None else chunks
        self.several, self.apart, self.shared = several, apart, shared
        self.width = stored.shape[1]
        self.dtype = torch.float64 if stored.dtype == torch.float64 else torch.float32  # of rows that are read

    def divided(self, size: int) -> Rows:
        """The same rows in chunks of so many sample indices; rows that several processes hold are in chunks already."""
        if self.shared:
            return self
        found = copy(self)
        found.chunks = cut_places(
            self._chosen, 0, self.total if self._chosen is None else int(self._chosen[-1]) + 1, size
        )
        found.several = len(found.chunks) > 1
        return found

    def narrowed(self, width: int) -> Rows:
        """The first columns of the same rows."""
        found = copy(self)
        found._stored, found.width = self._stored[:, :width], width
        return found

    def beside(self, values: Tensor) -> Rows:
        """Other rows (n, k) of the same samples, which every process has whole, in the same chunks."""
        chunks = [Chunk(chunk.start, chunk.stop, chunk.start) for chunk in self.chunks]
        return Rows(values, chunks=chunks, total=self.total, several=self.several, shared=self.shared)

    def whole(self) -> Tensor:
        """All rows in one piece, (n, m) on the device, where they are all held here."""
        held = Chunk(0, self.total, 0)
        return self.read(held, 0, self.total)

    def read(self, chunk: Chunk, start: int, stop: int) -> Tensor:
        """Places start … stop − 1, of that chunk, (stop − start, m) in `dtype` on the device."""
        held = slice(chunk.stored + start - chunk.start, chunk.stored + stop - chunk.start)
        rows = self._stored[held] if self._chosen is None else self._stored[self._chosen[held]]
        return rows.to(self.device).to(self.dtype).contiguous()

    def pick(self, chunk: Chunk, places: Tensor) -> Tensor:
        """Samples at the given places of that chunk, (len(places), m) in `dtype` on the device."""
        held = (places - (chunk.start - chunk.stored)).to(self._stored.device)
        rows = self._stored[held if self._chosen is None else self._chosen[held]]
        return rows.to(self.device).to(self.dtype)

    def blocks(self, size: int) -> Iterator[tuple[Chunk, Iterator[Tensor]]]:
        """For every chunk of this process, its rows, at most `size` at a time."""
        for chunk in self.chunks:
            starts = range(chunk.start, chunk.stop, size)
            yield chunk, (self.read(chunk, start, min(start + size, chunk.stop)) for start in starts)


def cut_places(chosen: Tensor | None, first: int, last: int, size: int, start: int = 0) -> list[Chunk]:
    """Chunks of samples with indices first … last − 1, cut at multiples of `size`; empty ones are left out.

    chosen: (n',) which of the rows from `first` on there are, rising; None for all.   start: the first one's place.
    """
    edges = torch.tensor([*range(first, last, size), last]) - first
    if chosen is not None:
        edges = torch.searchsorted(chosen.cpu(), edges)
    pairs = zip(edges.tolist(), edges.tolist()[1:], strict=False)
    return [Chunk(start + low, start + high, low) for low, high in pairs if high > low]


class ExactSum:
    """The sum of all chunks' parts, of all processes: the same bits in any order.

    bound: of the sum of the parts' absolute values, entry by entry. A sum of one chunk alone is its part, untouched.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, rows: Rows, bound: float) -> None:
        self._several, self._shared, self._dtype, self._bound = rows.several, rows.shared, dtype, max(bound, 2.0**-BITS)
        self._unit = 2.0 ** (math.ceil(math.log2(self._bound)) - BITS)
        self._shape, self._part = shape, torch.zeros(shape, dtype=dtype, device=rows.device)
        size = math.prod(shape)
        self._total = torch.zeros(size + 1 if rows.several else 0, dtype=torch.int64, device=rows.device)

    def add(self, part: Tensor) -> None:
        """One chunk's part."""
        if not self._several:
            self._part = part
            return
        self._total[:-1] += (part / self._unit).round_().to(torch.int64).view(-1)
        self._total[-1] += ~(part.abs() <= self._bound).all()  # NaN, infinities, and what would overflow

    def result(self) -> Tensor:
        """NaN where a part was not finite or beyond the bound."""
        if not self._several:
            return self._part
        if self._shared:
            distributed.sum_in_place(self._total)
        summed = self._total[:-1].to(self._dtype).mul_(self._unit).view(self._shape)
        return torch.where(self._total[-1] > 0, torch.nan, summed)


@dataclass(frozen=True)
class Moments:
    """Of columns: mean, root of the mean square around it, largest absolute value.   each: (k,)."""

    mean: Tensor
    spread: Tensor
    peak: Tensor


@dataclass(frozen=True)
class ChunkMoments:
    """Of one chunk's rows: their number, their mean and the sum of squares around it.   mean, squares: (k,)."""

    count: int
    mean: Tensor
    squares: Tensor

    def join(self, other: ChunkMoments) -> ChunkMoments:
        count = self.count + other.count
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        squares = self.squares + other.squares + apart.square() * (self.count * other.count / count)
        return ChunkMoments(count, mean, squares)


def column_moments(rows: Rows, blocks: Iterator[Iterator[Tensor]], width: int) -> Moments:
    """Moments of columns computed from the rows, whose parts come chunk by chunk.   parts: (b, k)."""
    wide = wide_type(rows.device)
    peak = torch.zeros(width, dtype=wide, device=rows.device)
    found = []
    for parts in blocks:
        chunk = None
        for part in parts:
            peak = torch.maximum(peak, part.abs().amax(0).to(wide))
            here = _measure(part.to(wide))
            chunk = here if chunk is None else chunk.join(here)
        if chunk is not None:
            found.append(chunk)
    if rows.shared:
        distributed.max_in_place(peak)
    largest = float(peak.max())
    sums = ExactSum((width,), wide, rows, rows.total * largest)
    for one in found:
        sums.add(one.mean * one.count)
    mean = sums.result() / rows.total
    around = ExactSum((width,), wide, rows, 4 * rows.total * largest**2)
    for one in found:
        around.add(one.squares + one.count * (one.mean - mean).square())
    return Moments(mean, (around.result() / rows.total).sqrt(), peak)


def _measure(part: Tensor) -> ChunkMoments:
    mean = part.mean(0)
    return ChunkMoments(len(part), mean, (part - mean).square_().sum(0))


def wide_type(device: torch.device) -> torch.dtype:
    """Of sums that are taken once: float64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64
