"""Transfer of pixels to the device: all at once if they fit, else in batches, prefetched."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import Protocol

import torch
from torch import Tensor

_SHARE = 0.5  # of the device's free memory that pixels may use; the rest is for the network
_CHUNK = 1024  # images copied to the device at a time, so that the host never holds all of them twice
_POLL = 0.1  # seconds after which a waiting reader checks whether its batches are still needed


class Pixels(Protocol):
    """Decoded images, on disk or in memory."""

    @property
    def ids(self) -> list[str]: ...

    def __len__(self) -> int: ...

    def read(self, indices: Tensor, out: Tensor | None = None) -> Tensor:
        """Images (b, H, W, 3) uint8 at the row numbers (b,) int64, into `out` if given."""


class Feed(Protocol):
    """Yields, for positions (b,) in the part, images on the device (m, H, W, 3) uint8 and the rows (b,) to use of them.

    Rows of None mean all images in order.   index_device: the device on which it expects the positions.
    """

    index_device: torch.device

    def images(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor | None]]: ...


class ResidentFeed:
    """Keeps all images of the part on the device; a batch is selected from them when it is used.

    On the CPU the memory map itself serves as the device's memory: nothing is copied.
    """

    def __init__(self, pixels: Pixels, rows: Tensor, device: torch.device) -> None:
        self.index_device = device
        self._pixels, self._rows = pixels, rows
        self._resident = None if device.type == "cpu" else self._upload()

    def images(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor | None]]:
        for positions in batches:
            if self._resident is None:
                yield self._pixels.read(self._rows[positions]), None
            else:
                yield self._resident, positions

    def _upload(self) -> Tensor:
        first = self._pixels.read(self._rows[:1])
        resident = torch.empty((len(self._rows), *first.shape[1:]), dtype=torch.uint8, device=self.index_device)
        for start in range(0, len(self._rows), _CHUNK):
            chunk = self._pixels.read(self._rows[start : start + _CHUNK])
            resident[start : start + len(chunk)] = chunk.to(self.index_device)
        return resident


class StreamFeed:
    """Reads batches ahead into pinned memory in a thread; a second stream copies them while the device computes."""

    def __init__(self, pixels: Pixels, rows: Tensor, device: torch.device, prefetch: int) -> None:
        self.index_device = torch.device("cpu")
        self._pixels, self._rows = pixels, rows
        self._device, self._prefetch = device, prefetch

    def images(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor | None]]:
        read = (self._read(positions) for positions in batches)
        with closing(read_ahead(read, self._prefetch)) as ready:
            cuda = self._device.type == "cuda"
            for images in self._copy_ahead(ready) if cuda else ready:
                yield images.to(self._device), None

    def _read(self, positions: Tensor) -> Tensor:
        rows = self._rows[positions]
        if self._device.type != "cuda":
            return self._pixels.read(rows)
        shape = self._pixels.read(rows[:0]).shape[1:]
        pinned = torch.empty((len(rows), *shape), dtype=torch.uint8, pin_memory=True)
        return self._pixels.read(rows, out=pinned)

    def _copy_ahead(self, ready: Iterator[Tensor]) -> Iterator[Tensor]:
        """Start copying the next batch before yielding the current one."""
        stream = torch.cuda.Stream(self._device)
        waiting: tuple[Tensor, torch.cuda.Event] | None = None
        for host in ready:
            with torch.cuda.stream(stream):
                images = host.to(self._device, non_blocking=True)
                copied = torch.cuda.Event()
                copied.record(stream)
            if waiting is not None:
                yield self._hand_over(*waiting)
            waiting = (images, copied)
        if waiting is not None:
            yield self._hand_over(*waiting)

    def _hand_over(self, images: Tensor, copied: torch.cuda.Event) -> Tensor:
        """Make the current stream wait for the copy, and keep the memory until that stream has used it."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(copied)
        images.record_stream(current)
        return images


def fits_on_device(count: int, pixels: Pixels, device: torch.device) -> bool:
    """Whether `count` images fit on the device. Always true on the CPU, which maps the file."""
    if device.type == "cpu":
        return True
    if device.type != "cuda":
        return False
    image_bytes = pixels.read(torch.zeros(1, dtype=torch.int64)).numel()
    free, _ = torch.cuda.mem_get_info(device)
    return count * image_bytes <= _SHARE * free


def read_ahead(batches: Iterable[Tensor], depth: int) -> Generator[Tensor, None, None]:
    """Yield the same batches, computed up to `depth` ahead in a thread; its errors are raised here."""
    ready: queue.Queue[Tensor | BaseException | None] = queue.Queue(maxsize=depth)
    stopped = threading.Event()

    def put(item: Tensor | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=_POLL)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for batch in batches:
                put(batch)
                if stopped.is_set():
                    return
            put(None)
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=work, name="stablenet-read-ahead", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()
