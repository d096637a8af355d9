"""Batches (x, y, domain, index) on the device, from a part of a manifest and its pixels.

The samples of a batch are a pure function of seed and epoch, divided among processes by slicing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from stablenet.data.augment import Transform
from stablenet.data.compose import blend
from stablenet.data.feed import Feed, Pixels, ResidentFeed, StreamFeed, fits_on_device
from stablenet.data.image_list import ComposedList
from stablenet.data.manifest import Manifest
from stablenet.data.store import PixelStore, take_rows
from stablenet.errors import UserError
from stablenet.randomness import combine, draw_uniform
from stablenet.registry import unknown_name
from stablenet.values import Count, check_fields


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """batch_size: samples per step over all processes.
    seed: determines, with the epoch, order and augmentation.
    shuffle: False keeps the order of the manifest.
    balance_domains: every batch has the same number of samples from every domain; small domains are repeated, and
        an epoch still has as many samples as the part.
    drop_last: drop an incomplete last batch, so that all batches have the same shape.
    most: batches of an epoch at most, of other samples in each; None for as many as there are.
    """

    batch_size: Count = 128  # the authors' published code
    seed: int = 0
    shuffle: bool = True
    balance_domains: bool = False
    drop_last: bool = False
    most: Count | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.balance_domains and not self.shuffle:
            raise UserError("balance_domains requires shuffle: balanced batches cannot keep the manifest's order")


@dataclass(frozen=True)
class Order:
    """The order of an epoch: batch k over all processes is [k·batch_size, (k + 1)·batch_size).

    position: (m,) int64 into the samples.   visit: (m,) int64, how often the sample occurred before in this epoch.
    """

    position: Tensor
    visit: Tensor


def count_batches(samples: int, settings: BatchSettings) -> int:
    """Batches per epoch."""
    whole = settings.drop_last or settings.balance_domains
    there = samples // settings.batch_size if whole else -(-samples // settings.batch_size)
    return min(there, settings.most or there)


def order_epoch(domain: Tensor, epoch: int, settings: BatchSettings, weights: Tensor | None = None) -> Order:
    """The order of an epoch over samples with the domains (n,).

    weights: (n,) how often samples are drawn relative to each other; None draws each once.
    """
    count = len(domain)
    if settings.balance_domains:
        if weights is not None:
            raise UserError("samples are drawn by weights or evenly over domains, not both")
        return _balance(domain, epoch, settings)
    if weights is not None:
        return _resample(weights, epoch, settings)
    kept = min(count, count_batches(count, settings) * settings.batch_size)
    index = torch.arange(count)
    if settings.shuffle:
        index = _shuffle(index, settings.seed, epoch)
    return Order(index[:kept], torch.zeros(kept, dtype=torch.int64))


def slice_batch(batch: int, total: int, settings: BatchSettings, rank: int, world_size: int) -> slice:
    """The slice of an epoch of `total` samples that is the batch of process `rank`.

    The slices of all processes, concatenated, are the batch a single process would see. An incomplete last batch is
    divided evenly too; if it has fewer samples than there are processes, some get an empty slice.
    """
    start = batch * settings.batch_size
    length = min(settings.batch_size, total - start)
    return slice(start + length * rank // world_size, start + length * (rank + 1) // world_size)


def check_division(domain: Tensor, settings: BatchSettings, world_size: int) -> None:
    """Reject batch sizes that cannot be divided evenly among processes or domains, and epochs without a batch."""
    share = settings.batch_size
    if share % world_size:
        raise UserError(
            f"a batch of {share} cannot be divided evenly among {world_size} processes: "
            f"choose a multiple of {world_size}"
        )
    domains = len(domain.unique())
    if settings.balance_domains and (share // world_size) % domains:
        raise UserError(
            f"a batch of {share} on {world_size} processes cannot have equal numbers of {domains} domains: "
            f"choose a multiple of {domains * world_size}"
        )
    if count_batches(len(domain), settings) == 0:
        raise UserError(f"{len(domain)} samples do not fill one batch of {share}: choose a smaller batch_size")


def _shuffle(index: Tensor, seed: int, *counters: int) -> Tensor:
    """The numbers (n,) in random order: sorted by their random bits."""
    return index[combine(seed, *counters, index).argsort(stable=True)]


def _balance(domain: Tensor, epoch: int, settings: BatchSettings) -> Order:
    """Interleave the domains, so that every slice of a batch is balanced; each domain is shuffled separately."""
    domains = domain.unique().tolist()
    rounds = count_batches(len(domain), settings) * settings.batch_size // len(domains)
    positions, visits = [], []
    for number in domains:
        members = (domain == number).nonzero().squeeze(1)
        passes = -(-rounds // len(members))
        again = [_shuffle(members, settings.seed, epoch, visit + 1) for visit in range(passes)]
        positions.append(torch.cat(again)[:rounds])
        visits.append(torch.arange(rounds) // len(members))
    return Order(torch.stack(positions, 1).flatten(), torch.stack(visits, 1).flatten())


def _resample(weights: Tensor, epoch: int, settings: BatchSettings) -> Order:
    """Draw an epoch by weights (n,): every sample as often as expected, rounded up or down (systematic resampling)."""
    total = min(len(weights), count_batches(len(weights), settings) * settings.batch_size)
    sample = _shuffle(torch.arange(len(weights)), settings.seed, epoch)  # whom the rounding favours
    edges = weights[sample].double().cumsum(0)
    chance = draw_uniform(combine(settings.seed, epoch, _RESAMPLE).view(1), 1).double()
    points = (torch.arange(total) + chance[0]) / total * edges[-1]
    place = torch.searchsorted(edges, points, right=True).clamp(max=len(weights) - 1)
    visit = torch.arange(total) - torch.searchsorted(place, place)  # places rise: a sample's visits are neighbours
    mixed = combine(settings.seed, epoch, _RESAMPLE, torch.arange(total)).argsort(stable=True)
    return Order(sample[place][mixed], visit[mixed])


_PLACES = ("auto", "device", "stream")
_AUGMENT, _RESAMPLE = 1, 2  # make the random bits of augmentation and resampling differ from those of the order


@dataclass(frozen=True)
class Batch:
    """x: (b, 3, s, s) float32.   y: (b,) class.   domain: (b,).   index: (b,) row number within the part."""

    x: Tensor
    y: Tensor
    domain: Tensor
    index: Tensor


@dataclass(frozen=True)
class PartSamples:
    """One part of a manifest with its pixels; no other part is read.

    row: (n,) row in the pixels.   y, domain: (n,) int64.   index: (n,) row number within the part; images left out by
    the store are missing.   size: rows of the part, including those left out.
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


def read_part(store: PixelStore, manifest: Manifest, part: str) -> PartSamples:
    """Look up a part's images in the store of its source. Only images recorded as left out may be missing."""
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


def render_part(table: ComposedList, manifest: Manifest, part: str) -> PartSamples:
    """Blend the digits and backgrounds of a part in memory."""
    rows = manifest.part(part)
    if not manifest.composed:
        raise UserError(f"the manifest of {manifest.source} has no crops: it was not made for {table.name}")
    number = pd.Series(np.arange(len(table.rows)), index=table.rows["id"])
    digit = rows["id"].map(number)
    if digit.isna().any():
        raise UserError(
            f"{table.name} has no digit {rows.loc[digit.isna(), 'id'].iloc[0]}: "
            "was the manifest made from another source?"
        )
    domain, u, v = (rows[name].to_numpy(np.int64) for name in ("domain", "u", "v"))
    pixels = blend(table.read_digits()[digit.to_numpy(np.int64)], table.read_backgrounds(), domain, u, v)
    memory = MemoryPixels(rows["id"].tolist(), torch.from_numpy(pixels))
    return _bind(memory, rows, np.arange(len(rows)), len(rows))


def _bind(pixels: Pixels, rows: pd.DataFrame, number: NDArray[np.int64], size: int) -> PartSamples:
    columns = (number, rows["label"], rows["domain"], rows.index)
    row, y, domain, index = (torch.from_numpy(np.array(column, np.int64)) for column in columns)
    return PartSamples(pixels, row, y, domain, index, size)


class Loader:
    """Batches of one part, by epoch.

    place: "device" keeps all pixels there, "stream" transfers each batch, "auto" keeps them if they fit.
    rank, world_size: of this process; together the processes see the batches a single process would see.
    ranges: the samples of every process, each of which then reads its own alone, in order, in as many batches as the
        others; the last ones may be empty. None divides every batch.
    """

    def __init__(
        self,
        samples: PartSamples,
        settings: BatchSettings,
        transform: Transform,
        *,
        device: torch.device | str = "cpu",
        place: str = "auto",
        prefetch: int = 3,
        rank: int = 0,
        world_size: int = 1,
        ranges: Sequence[range] | None = None,
    ) -> None:
        if place not in _PLACES:
            raise UserError(unknown_name("place for pixels", place, _PLACES))
        if not 0 <= rank < world_size:
            raise UserError(f"rank must be in 0..{world_size - 1}, got {rank}")
        check_division(samples.domain, settings, world_size)
        self.samples, self.settings, self.transform = samples, settings, transform
        self.device = torch.device(device)
        self.rank, self.world_size = rank, world_size
        self._ranges = ranges
        self.own = range(len(samples)) if ranges is None else ranges[rank]
        self._feed = self._choose_feed(place, prefetch)
        self._image_size = samples.pixels.read(samples.row[:0]).shape[1:3]
        columns = torch.stack([samples.y, samples.domain, samples.index])
        self._columns = columns[:, self.own.start : self.own.stop].to(self.device)

    def __len__(self) -> int:
        """Batches per epoch."""
        if self._ranges is None:
            return count_batches(len(self.samples), self.settings)
        return -(-max(map(len, self._ranges)) // self._share)

    def epoch(self, number: int, start: int = 0, weights: Tensor | None = None) -> Iterator[Batch]:
        """The batches of an epoch, starting at batch `start`; the same in every run.

        weights: (size of the part,) how often samples are drawn relative to each other; None draws each once.
        """
        order = self._order(number, weights)
        key = combine(self.settings.seed, number, _AUGMENT, self.samples.index[order.position], order.visit).to(
            self.device
        )
        draws = self.transform.draw(key, *self._image_size)
        position = order.position - self.own.start
        columns = self._columns[:, position.to(self.device)]
        slices = [self._slice(batch, len(position)) for batch in range(start, len(self))]
        position = position.to(self._feed.index_device)
        images = self._feed.images(position[part] for part in slices)
        for part, (pixels, rows) in zip(slices, images, strict=True):
            y, domain, index = columns[:, part]
            yield Batch(self.transform.apply(pixels, draws[part], rows), y, domain, index)

    def size_of(self, batch: int) -> int:
        """Number of samples of batch `batch` (from 0) over all processes; only the last one may be incomplete."""
        size = self.settings.batch_size
        return size if self.settings.balance_domains else min(size, len(self.samples) - batch * size)

    def ids_of(self, number: int, batch: int, weights: Tensor | None = None) -> list[str]:
        """Ids of the samples of batch `batch` (from 0) of epoch `number`, over all processes; weights as in `epoch`."""
        size = self.settings.batch_size
        position = self._order(number, weights).position[batch * size : (batch + 1) * size]
        ids = self.samples.pixels.ids
        return [ids[row] for row in self.samples.row[position].tolist()]

    @property
    def _share(self) -> int:
        """A process's samples of a whole batch."""
        return self.settings.batch_size // self.world_size

    def _slice(self, batch: int, total: int) -> slice:
        """Where this process's samples of a batch are, in the order of the epoch."""
        if self._ranges is None:
            return slice_batch(batch, total, self.settings, self.rank, self.world_size)
        return slice(*(min(edge * self._share, total) for edge in (batch, batch + 1)))

    def _order(self, number: int, weights: Tensor | None) -> Order:
        if self._ranges is not None:
            own = torch.tensor(self.own, dtype=torch.int64)
            return Order(own, torch.zeros_like(own))
        chosen = None if weights is None else weights.cpu()[self.samples.index]
        return order_epoch(self.samples.domain, number, self.settings, chosen)

    def _choose_feed(self, place: str, prefetch: int) -> Feed:
        pixels, rows = self.samples.pixels, self.samples.row[self.own.start : self.own.stop]
        resident = place == "device" or (place == "auto" and fits_on_device(len(rows), pixels, self.device))
        if resident:
            return ResidentFeed(pixels, rows, self.device)
        return StreamFeed(pixels, rows, self.device, prefetch)
