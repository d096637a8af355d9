"""Which samples a batch holds: a pure function of seed and epoch, divided among processes by slicing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.errors import UserError
from stablenet.randomness import combine
from stablenet.values import Count, check_fields


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """batch_size: samples per step, all processes together.
    seed: with the epoch it fixes order and augmentation.
    shuffle: False keeps the order of the manifest.
    balance_domains: every batch holds the same number from every domain; small domains come round again, and
        an epoch still has as many samples as the part.
    drop_last: leave out a short last batch, so that every batch has the same shape.
    """

    batch_size: Count = 128  # the authors' published code
    seed: int = 0
    shuffle: bool = True
    balance_domains: bool = False
    drop_last: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.balance_domains and not self.shuffle:
            raise UserError("balance_domains needs shuffle: batches of equal shares cannot keep the order")


@dataclass(frozen=True)
class Order:
    """An epoch: batch k of all processes together is [k·batch_size, (k + 1)·batch_size).

    position: (m,) int64 into the samples.   visit: (m,) int64, how often the sample came before in this epoch.
    """

    position: Tensor
    visit: Tensor


def count_batches(samples: int, settings: BatchSettings) -> int:
    """Batches per epoch."""
    if settings.drop_last or settings.balance_domains:
        return samples // settings.batch_size
    return -(-samples // settings.batch_size)


def order_epoch(domain: Tensor, epoch: int, settings: BatchSettings) -> Order:
    """The order of an epoch over samples with the domains (n,)."""
    count = len(domain)
    if settings.balance_domains:
        return _balance(domain, epoch, settings)
    kept = min(count, count_batches(count, settings) * settings.batch_size)
    index = torch.arange(count)
    if settings.shuffle:
        index = _shuffle(index, settings.seed, epoch)
    return Order(index[:kept], torch.zeros(kept, dtype=torch.int64))


def slice_batch(batch: int, total: int, settings: BatchSettings, rank: int, world_size: int) -> slice:
    """Which part of an epoch of `total` samples process `rank` takes as its batch.

    The slices of all processes, one after another, are the batch one process would see. A short last batch is
    divided evenly too; where it has fewer samples than there are processes, some get an empty one.
    """
    start = batch * settings.batch_size
    length = min(settings.batch_size, total - start)
    return slice(start + length * rank // world_size, start + length * (rank + 1) // world_size)


def check_division(domain: Tensor, settings: BatchSettings, world_size: int) -> None:
    """Refuse batch sizes that processes or domains cannot share evenly, and epochs without a batch."""
    share = settings.batch_size
    if share % world_size:
        raise UserError(f"a batch of {share} cannot be divided evenly among {world_size} processes")
    domains = len(domain.unique())
    if settings.balance_domains and (share // world_size) % domains:
        raise UserError(
            f"a batch of {share} on {world_size} processes cannot hold equal numbers of {domains} domains: "
            f"choose a multiple of {domains * world_size}"
        )
    if count_batches(len(domain), settings) == 0:
        raise UserError(f"{len(domain)} samples do not fill one batch of {share}: choose a smaller batch_size")


def _shuffle(index: Tensor, seed: int, *counters: int) -> Tensor:
    """The numbers (n,) in random order: sorted by their random bits."""
    return index[combine(seed, *counters, index).argsort(stable=True)]


def _balance(domain: Tensor, epoch: int, settings: BatchSettings) -> Order:
    """Domains in turn, so that every slice of a batch is balanced; each domain in an order of its own."""
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
