"""Features of many samples outside a module's buffers: on the host, in a file, or divided among processes."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from stablenet.errors import UserError
from stablenet.files import name_full_disk
from stablenet.weighting import distributed
from stablenet.weighting.chunks import CHUNK_ROWS, Rows, cut_places

ZEROS_AT_ONCE = 2**24  # bytes, where a file can only be reserved by writing it
PLACES = "'device', 'host' or a folder with its path, such as './features'"
NOT_RESERVED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)  # by file systems that cannot reserve space


def names_place(place: str | Path) -> bool:
    """Whether features can be kept there: "device", "host", or a folder, whose name alone could be a misspelling."""
    return place in ("device", "host") or isinstance(place, Path) or os.path.dirname(place) != ""


def own_range(num_samples: int, rank: int, processes: int) -> tuple[int, int]:
    """The sample indices, first … last − 1, that a process holds: whole chunks, about as many as every other."""
    chunks = -(-num_samples // CHUNK_ROWS)
    first, last = (-(-number * chunks // processes) * CHUNK_ROWS for number in (rank, rank + 1))
    return min(first, num_samples), min(last, num_samples)


class Shelf:
    """Features and labels of the samples of a process: all of them, or of several processes its own range.

    place: "device", "host", or the folder of a memory-mapped file.   labels: (B,) or (B, C), whose form is taken over.
    """

    def __init__(
        self,
        num_samples: int,
        like: Tensor,
        labels: Tensor | None,
        place: str | Path,
        *,
        divided: bool,
    ) -> None:
        self.num_samples, self.device, self.divided = num_samples, like.device, divided
        self.first, self.last = 0, num_samples
        if divided:
            self.first, self.last = own_range(num_samples, distributed.rank(), distributed.processes())
        held = self.last - self.first
        self.features = reserve(held, like.shape[1], like.dtype, place, like.device)
        self.labels = None if labels is None else labels.detach().new_zeros(held, *labels.shape[1:])
        self.seen = torch.zeros(held, dtype=torch.bool, device=like.device)

    def owns(self, index: Tensor) -> Tensor:
        """Which samples are this process's (B,).   index: (B,)."""
        return (index >= self.first) & (index < self.last)

    def keep(self, index: Tensor, z: Tensor, labels: Tensor | None) -> None:
        """Remember those of the samples that are this process's.   z: (B, m)."""
        own = self.owns(index.to(self.device))
        places = index.to(self.device)[own] - self.first
        self.features[places.to(self.features.device)] = z[own].to(self.features.device)
        self.seen[places] = True
        if self.labels is not None and labels is not None:
            self.labels[places] = labels.detach().to(self.device)[own].to(self.labels.dtype)

    def read(self, apart: bool) -> tuple[Tensor, Rows, Tensor | None]:
        """Indices and labels of all processes' samples, and the rows of this one's.   apart: as in `Rows`."""
        seen = self._join(self.seen.to(torch.int64)) > 0
        labels = None if self.labels is None else self._join(self.labels)
        chosen = seen.nonzero().squeeze(1)
        own = None if bool(self.seen.all()) else self.seen.nonzero().squeeze(1)
        if not self.divided:
            return chosen, Rows(self.features, device=self.device, chosen=own, apart=apart), pick(labels, chosen)
        start = int(seen[: self.first].sum())
        rows = Rows(
            self.features,
            device=self.device,
            chosen=own,
            chunks=cut_places(own, self.first, self.last, CHUNK_ROWS, start),
            total=len(chosen),
            several=len(cut_places(chosen, 0, self.num_samples, CHUNK_ROWS)) > 1,
            apart=True,
            shared=True,
        )
        return chosen, rows, pick(labels, chosen)

    def _join(self, own: Tensor) -> Tensor:
        """What all processes hold, (N, …), from what this one does."""
        if not self.divided:
            return own
        whole = own.new_zeros(self.num_samples, *own.shape[1:])
        whole[self.first : self.last] = own
        distributed.sum_in_place(whole)  # zero in all other processes
        return whole


def pick(labels: Tensor | None, chosen: Tensor) -> Tensor | None:
    """The labels of these samples."""
    return None if labels is None else labels[chosen]


def reserve(rows: int, width: int, dtype: torch.dtype, place: str | Path, device: torch.device) -> Tensor:
    """Room for features (rows, width), on the device, on the host, or in a file of that folder."""
    if place in ("device", "host"):
        return torch.zeros(rows, width, dtype=dtype, device=device if place == "device" else "cpu")
    size = rows * width * dtype.itemsize
    folder = Path(place)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix="features-", suffix=".bin", dir=folder)
    except OSError as error:
        raise UserError(f"cannot write features to {folder} ({error.strerror}): choose another folder") from error
    path = Path(name)
    try:
        with name_full_disk(path), os.fdopen(descriptor, "wb") as file:
            fill_file(file.fileno(), size)
        return torch.from_file(name, shared=True, size=rows * width, dtype=dtype).view(rows, width)
    finally:
        if os.name != "nt":  # the map keeps the data, and nothing is left behind however the process ends
            path.unlink(missing_ok=True)


def fill_file(descriptor: int, size: int) -> None:
    """Reserve the space of a file now: a disk that fills up later would end the program without a word."""
    if size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
            return
        except OSError as error:
            if error.errno not in NOT_RESERVED:
                raise
    for start in range(0, size, ZEROS_AT_ONCE):
        os.write(descriptor, bytes(min(ZEROS_AT_ONCE, size - start)))
