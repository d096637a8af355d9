"""Features of a whole set, collected batch by batch, and where they are kept until a solve reads them."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stablenet.errors import UserError
from stablenet.files import name_full_disk
from stablenet.values import Count, check_arguments
from stablenet.weighting import distributed
from stablenet.weighting.chunks import CHUNK_ROWS, MemorySize, Rows, choose_budget, cut_places
from stablenet.weighting.inputs import Features, join_layers, read_labels
from stablenet.weighting.memory import adopt_saved_shapes

ZEROS_AT_ONCE = 2**24  # bytes, where a file can only be reserved by writing it
PLACES = "'device', 'host' or a folder with its path, such as './features'"
NOT_RESERVED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)  # by file systems that cannot reserve space


def names_place(place: str | Path) -> bool:
    """Whether features can be kept there: "device", "host", or a folder with its path, as a bare name may be a typo."""
    return place in ("device", "host") or isinstance(place, Path) or os.path.dirname(place) != ""


def own_range(num_samples: int, rank: int, processes: int) -> tuple[int, int]:
    """The sample indices, first … last − 1, that a process holds: whole chunks, about as many as every other."""
    chunks = -(-num_samples // CHUNK_ROWS)
    first, last = (-(-number * chunks // processes) * CHUNK_ROWS for number in (rank, rank + 1))
    return min(first, num_samples), min(last, num_samples)


EVEN = 4  # chunks of every process, from which on whole chunks are about even shares


def pass_range(num_samples: int, rank: int, processes: int) -> tuple[int, int]:
    """The sample indices, first … last − 1, that a process passes through the network.

    Those that it holds, so that features need not travel; of fewer chunks than `EVEN` for each, an even share.
    """
    if num_samples > EVEN * processes * CHUNK_ROWS:
        return own_range(num_samples, rank, processes)
    return num_samples * rank // processes, num_samples * (rank + 1) // processes


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
    """Reserve the space of a file now: a disk that fills up later would end the program without a message."""
    if size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
            return
        except OSError as error:
            if error.errno not in NOT_RESERVED:
                raise
    for start in range(0, size, ZEROS_AT_ONCE):
        os.write(descriptor, bytes(min(ZEROS_AT_ONCE, size - start)))


COLLECTED = ("features", "labels", "seen")
ROWS_CHECKED = 4096  # at a time, for NaN and infinities


class SampleStore(nn.Module):
    """The common part of whole-set solves. A subclass adds what it solves for, by sample, as buffers.

    storage: type of the stored features; float16 halves the memory and is enough for pooled activations.
    memory: what a solve may take beside the features, such as "4GiB"; None takes a share of what is free.
    place: where features are kept: "device", "host", or a folder for a memory-mapped file, on a fast disk.
    """

    features: Tensor
    labels: Tensor
    seen: Tensor

    def __init__(
        self,
        num_samples: Count,
        storage: torch.dtype,
        memory: MemorySize | None,
        place: str | Path,
        with_labels: bool,
    ) -> None:
        check_arguments(SampleStore.__init__, locals())  # a mistake is reported before anything is collected
        super().__init__()
        if not isinstance(storage, torch.dtype) or not storage.is_floating_point:
            raise UserError(f"storage must be a floating-point type such as torch.float16, got {storage!r}")
        if not names_place(place):
            raise UserError(f"features are kept in a place named {PLACES}, got {place!r}")
        self.num_samples = num_samples
        self.memory, self.place = memory, place
        self._shelf: Shelf | None = None  # in the buffers' place: not on the device, or not of all processes' samples
        self._apart = False  # whether the set is too large for a solve in one piece
        self.lost = False  # whether an interruption has cost features that were in no checkpoint
        self._storage = storage
        self._with_labels = with_labels
        self.register_buffer("features", torch.empty(0, dtype=storage))
        self.register_buffer("labels", torch.empty(0))
        self.register_buffer("seen", torch.zeros(num_samples, dtype=torch.bool))

    @torch.no_grad()
    def collect(self, index: Tensor, features: Features, labels: Tensor | None = None) -> None:
        """Remember a batch.   index: (B,) in 0 … N−1.   features: (B, m) or layers.   labels: (B,) or (B, C).

        If a sample comes again, only its latest features count. Several processes call it together, each with its part
        of the batch, and all of them remember the whole: wrappers that give the first one's buffers to all, and
        checkpoints, which the first one writes, then lose nothing. Of a set too large for one piece each remembers only
        a range of indices, in no checkpoint; features travel once, or not at all where each passes its own range.
        """
        z, _ = join_layers(features, least=1 if distributed.processes() == 1 else 0)
        labels = read_labels(labels, len(z), needed=self._with_labels)
        self._check_index(index, len(z))
        self._check_shapes(z, labels)
        z = z.to(self._storage)
        if not self._has_room():
            self._allocate(z, labels)
        if distributed.processes() > 1 and not self._all_own(index):
            sizes = distributed.gather_sizes(len(z), z.device)
            index, z = (distributed.gather_rows(rows, sizes) for rows in (index.to(z.device), z))
            labels = None if labels is None else distributed.gather_rows(labels, sizes)
        if self._shelf is not None:
            self._shelf.keep(index, z, labels)
            self.seen[index.to(self.seen.device)] = True
            return
        self.features[index] = z
        self.seen[index] = True
        if self.labels.numel() and labels is not None:
            self.labels[index] = labels.detach().to(self.labels.dtype)

    def _check_index(self, index: object, size: int) -> None:
        if not isinstance(index, Tensor) or index.shape != (size,):
            got = tuple(index.shape) if isinstance(index, Tensor) else type(index).__name__
            raise UserError(f"index must be a tensor with one entry per sample, shape ({size},), got {got}")
        if index.dtype == torch.bool or index.is_floating_point() or index.is_complex():
            raise UserError(f"index must hold whole numbers, the places of the samples, got {index.dtype}")
        # Elsewhere looking would wait for the device, whose own check of indices stops the program.
        if index.device.type == "cpu" and size and not 0 <= int(index.min()) <= int(index.max()) < self.num_samples:
            raise UserError(
                f"index must lie in 0..{self.num_samples - 1}, the places of the {self.num_samples} samples, "
                f"got {int(index.min())} to {int(index.max())}"
            )

    def _check_shapes(self, z: Tensor, labels: Tensor | None) -> None:
        """Refuse what does not fit to the batches collected so far."""
        if not self._has_room():
            return
        features, kept = (
            (self.features, self.labels) if self._shelf is None else (self._shelf.features, self._shelf.labels)
        )
        if z.shape[1] != features.shape[1]:
            raise UserError(
                f"features have {z.shape[1]} columns, those collected before have {features.shape[1]}: "
                "pass the same layers every time"
            )
        if labels is not None and kept is not None and labels.shape[1:] != kept.shape[1:]:
            raise UserError("labels must have one form in all batches: classes (B,), or columns (B, C) of one number")

    def read(self) -> tuple[Tensor, Rows, Tensor | None]:
        """Indices of the samples collected since the last solve, rising, their features and labels."""
        if not bool(self.seen.any()):
            raise UserError("nothing was collected; call collect(index, features, labels) on the batches of an epoch")
        chosen, rows, labels = self._read_buffers() if self._shelf is None else self._shelf.read(self._apart)
        lost = self.seen.clone()
        lost[chosen.to(lost.device)] = False
        if bool(lost.any()):
            raise UserError(
                f"the features of {int(lost.sum()):,} samples were collected before the interruption and are in no "
                "checkpoint, as they were kept on the host, in a file or by several processes: collect from the first "
                "batch of the epoch again, or in a pass before it"
            )
        finite = all(bool(torch.isfinite(part).all()) for _, parts in rows.blocks(ROWS_CHECKED) for part in parts)
        if not (distributed.smallest(int(finite), rows.device) if rows.shared else finite):
            raise UserError(
                f"the collected features hold NaN or inf, or overflow {self._storage}; "
                f"build {type(self).__name__} with storage=torch.float32, or look for a diverging loss"
            )
        return chosen, rows, labels

    def _read_buffers(self) -> tuple[Tensor, Rows, Tensor | None]:
        if not self.features.numel():
            return self.seen.new_empty(0, dtype=torch.int64), Rows(self.features.view(0, 1)), None
        chosen = self.seen.nonzero().squeeze(1)
        whole = len(chosen) == self.num_samples
        rows = Rows(self.features, chosen=None if whole else chosen, apart=self._apart)
        return chosen, rows, self.labels[chosen] if self.labels.numel() else None

    def needs_chunks(self, width: int, budget: int, device: torch.device) -> bool:
        """Whether a solve from `width` features of every sample exceeds the budget and can be divided."""
        raise NotImplementedError

    def least_need(self, width: int, columns: int, device: torch.device) -> int:
        """The bytes that a solve chunk by chunk takes at least.   columns: classes."""
        raise NotImplementedError

    def _has_room(self) -> bool:
        return self._shelf is not None or self.features.numel() > 0

    def _all_own(self, index: Tensor) -> bool:
        """Whether every process was given samples of its own range alone."""
        if self._shelf is None or not self._shelf.divided:
            return False
        return bool(distributed.smallest(int(self._shelf.owns(index).all()), self._shelf.device))

    def forget(self) -> None:
        self._shelf, self.lost = None, False
        self.seen.fill_(False)
        self.features, self.labels = self.features.new_empty(0), self.labels.new_empty(0)

    def _allocate(self, z: Tensor, labels: Tensor | None) -> None:
        for name, buffer in self.named_buffers(recurse=False):
            setattr(self, name, buffer.to(z.device))
        several = distributed.processes() > 1
        budget = choose_budget(self.memory, z.device)
        budget = distributed.smallest(budget, z.device) if several else budget
        self._apart = self.needs_chunks(z.shape[1], budget, z.device)
        if self.place != "device" or (several and self._apart):
            kept = labels if self._with_labels else None
            divided = several and self._apart
            self._shelf = Shelf(self.num_samples, z, kept, self.place, divided=divided)
            return
        self.features = torch.zeros(self.num_samples, z.shape[1], dtype=self._storage, device=z.device)
        if labels is not None and self._with_labels:
            self.labels = labels.detach().new_zeros(self.num_samples, *labels.shape[1:])

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        adopt_saved_shapes(self, COLLECTED, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.lost = bool(self.seen.any()) and not self.features.numel()
