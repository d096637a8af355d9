"""From a part of a manifest and its pixels to batches (x, y, domain, index) on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from stablenet.data.augment import Transform
from stablenet.data.compose import blend
from stablenet.data.feed import Feed, Pixels, ResidentFeed, StreamFeed, fits_on_device
from stablenet.data.manifest import Manifest
from stablenet.data.order import BatchSettings, check_division, count_batches, order_epoch, slice_batch
from stablenet.data.store import PixelStore, take_rows
from stablenet.data.table import ComposedTable
from stablenet.errors import UserError
from stablenet.randomness import combine
from stablenet.registry import unknown_name

_PLACES = ("auto", "device", "stream")
_AUGMENT = 1  # keeps the bits of the augmentation apart from those of the order


@dataclass(frozen=True)
class Batch:
    """x: (b, 3, s, s) float32.   y: (b,) class.   domain: (b,).   index: (b,) row number within the part."""

    x: Tensor
    y: Tensor
    domain: Tensor
    index: Tensor


@dataclass(frozen=True)
class Samples:
    """One part of a manifest with its pixels; no other part is touched.

    row: (n,) row in the pixels.   y, domain: (n,) int64.   index: (n,) row number within the part, in which
    images a store had to leave out are missing.   size: rows of the part, left-out ones included.
    """

    pixels: Pixels
    row: Tensor
    y: Tensor
    domain: Tensor
    index: Tensor
    size: int

    def __len__(self) -> int:
        return len(self.row)


class MemoryPixels:
    """Images in memory, (n, H, W, 3) uint8."""

    def __init__(self, ids: list[str], pixels: Tensor) -> None:
        self._ids, self._pixels = ids, pixels

    @property
    def ids(self) -> list[str]:
        return self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def read(self, indices: Tensor, out: Tensor | None = None) -> Tensor:
        return take_rows(self._pixels, indices, out)


def read_part(store: PixelStore, manifest: Manifest, part: str) -> Samples:
    """Bind a part to the store of its source. Only images the store recorded as left out may be missing."""
    rows = manifest.part(part)
    number = pd.Series(np.arange(len(store)), index=store.ids)
    found = rows["id"].map(number)
    left_out = {entry["id"] for entry in store.header.left_out}
    unknown = rows.loc[found.isna() & ~rows["id"].isin(left_out), "id"]
    if len(unknown):
        raise UserError(
            f"{len(unknown)} images of the manifest are not in the store {store.path}, for example "
            f"{unknown.iloc[0]}: the store was made from another source; prepare {manifest.source} again"
        )
    kept = rows[found.notna()]
    return _bind(store, kept, found.dropna().to_numpy(np.int64), len(rows))


def render_part(table: ComposedTable, manifest: Manifest, part: str) -> Samples:
    """Blend the digits and backgrounds of a part, in memory, as its rows say."""
    rows = manifest.part(part)
    if not manifest.composed:
        raise UserError(f"the manifest of {manifest.source} names no crops: it was not made for {table.name}")
    number = pd.Series(np.arange(len(table.rows)), index=table.rows["id"])
    digit = rows["id"].map(number)
    if digit.isna().any():
        raise UserError(f"{table.name} has no digit {rows.loc[digit.isna(), 'id'].iloc[0]}: another source?")
    domain, u, v = (rows[name].to_numpy(np.int64) for name in ("domain", "u", "v"))
    pixels = blend(table.read_digits()[digit.to_numpy(np.int64)], table.read_backgrounds(), domain, u, v)
    memory = MemoryPixels(rows["id"].tolist(), torch.from_numpy(pixels))
    return _bind(memory, rows, np.arange(len(rows)), len(rows))


def _bind(pixels: Pixels, rows: pd.DataFrame, number: NDArray[np.int64], size: int) -> Samples:
    columns = (number, rows["label"], rows["domain"], rows.index)
    row, y, domain, index = (torch.from_numpy(np.array(column, np.int64)) for column in columns)
    return Samples(pixels, row, y, domain, index, size)


class Loader:
    """Batches of one part, epoch by epoch.

    place: "device" keeps all pixels there, "stream" brings batch by batch, "auto" keeps them if they fit.
    rank, world_size: this process and their number; together they see the batches one process would see.
    """

    def __init__(
        self,
        samples: Samples,
        settings: BatchSettings,
        transform: Transform,
        *,
        device: torch.device | str = "cpu",
        place: str = "auto",
        prefetch: int = 3,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if place not in _PLACES:
            raise UserError(unknown_name("place for pixels", place, _PLACES))
        if not 0 <= rank < world_size:
            raise UserError(f"rank {rank} is none of 0..{world_size - 1}")
        check_division(samples.domain, settings, world_size)
        self.samples, self.settings, self.transform = samples, settings, transform
        self.device = torch.device(device)
        self.rank, self.world_size = rank, world_size
        self._feed = self._choose_feed(place, prefetch)
        self._image_size = samples.pixels.read(samples.row[:0]).shape[1:3]
        self._columns = torch.stack([samples.y, samples.domain, samples.index]).to(self.device)

    def __len__(self) -> int:
        """Batches per epoch."""
        return count_batches(len(self.samples), self.settings)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from batch `start` on; the same in every run."""
        order = order_epoch(self.samples.domain, number, self.settings)
        key = combine(self.settings.seed, number, _AUGMENT, self.samples.index[order.position], order.visit).to(
            self.device
        )
        draws = self.transform.draw(key, *self._image_size)
        columns = self._columns[:, order.position.to(self.device)]
        total = len(order.position)
        slices = [
            slice_batch(batch, total, self.settings, self.rank, self.world_size) for batch in range(start, len(self))
        ]
        position = order.position.to(self._feed.index_device)
        images = self._feed.images(position[part] for part in slices)
        for part, (pixels, rows) in zip(slices, images, strict=True):
            y, domain, index = columns[:, part]
            yield Batch(self.transform.apply(pixels, draws[part], rows), y, domain, index)

    def size_of(self, batch: int) -> int:
        """Samples of batch `batch` (from 0) in all processes together; only a last one may be short."""
        size = self.settings.batch_size
        return size if self.settings.balance_domains else min(size, len(self.samples) - batch * size)

    def ids_of(self, number: int, batch: int) -> list[str]:
        """The names of the samples of batch `batch` (from 0) of epoch `number`, in all processes together."""
        size = self.settings.batch_size
        position = order_epoch(self.samples.domain, number, self.settings).position[batch * size : (batch + 1) * size]
        ids = self.samples.pixels.ids
        return [ids[row] for row in self.samples.row[position].tolist()]

    def _choose_feed(self, place: str, prefetch: int) -> Feed:
        samples = self.samples
        resident = place == "device" or (place == "auto" and fits_on_device(len(samples), samples.pixels, self.device))
        if resident:
            return ResidentFeed(samples.pixels, samples.row, self.device)
        return StreamFeed(samples.pixels, samples.row, self.device, prefetch)
