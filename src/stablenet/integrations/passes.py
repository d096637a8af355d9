"""A pass over a training set before training: samples with their index, features by the model, and progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy
from torch.utils.data import Dataset, Sampler

from stablenet.errors import UserError
from stablenet.models import FeatureTaps, read_features
from stablenet.weighting import distributed
from stablenet.weighting.samples import pass_range

B = TypeVar("B")


class SizedDataset(Protocol):
    """A data set of images and classes, by position."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Any: ...


class Indexed(Dataset[tuple[Any, ...]]):
    """A data set whose items begin with their index: (x, y) becomes (index, x, y).

    >>> Indexed([("image", 3)])[0]
    (0, 'image', 3)
    """

    def __init__(self, samples: SizedDataset) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, place: int) -> tuple[Any, ...]:
        return (place, *self.samples[place])


class OwnRange(Sampler[int]):
    """This process's range of the samples, in order; repeated until all processes have as many, as `longest` says.

    What processes do together, such as gathering shards, they must do equally often.
    """

    def __init__(self, num_samples: int) -> None:
        processes = distributed.processes()
        ranges = [range(*pass_range(num_samples, rank, processes)) for rank in range(processes)]
        self.own, self.longest = ranges[distributed.rank()], max(map(len, ranges))

    def __iter__(self) -> Iterator[int]:
        return islice(cycle(self.own or [0]), self.longest)

    def __len__(self) -> int:
        return self.longest


def refuse_different(model: nn.Module) -> None:
    """Raise if the processes' models differ: their features would not belong together.

    Shards of one model, which differ by design, are not compared, nor are lazy parameters, which do not exist before
    the first batch.
    """
    tensors = [tensor.detach() for tensor in (*model.parameters(), *model.buffers()) if not is_lazy(tensor)]
    if distributed.processes() == 1 or any(isinstance(tensor, DTensor) for tensor in tensors) or not tensors:
        return
    sums = torch.stack([tensor.double().sum() for tensor in tensors])
    lowest, highest = sums.neg(), sums.clone()
    distributed.max_in_place(lowest)
    distributed.max_in_place(highest)
    if not torch.equal(lowest.neg(), highest):
        raise UserError(
            "the processes' models differ, and each would read other features: wrap the model in "
            "DistributedDataParallel before it is given to DatasetCriterion, or seed all processes alike"
        )


def shard_again(model: nn.Module) -> None:
    """Give a model of `fully_shard` its shards back, which it leaves whole after a pass without a backward pass.

    An optimiser that is built now would otherwise be given whole parameters, which are thrown away later.
    """
    if distributed.processes() == 1:
        return
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def find_device(model: nn.Module) -> torch.device:
    return next(model.parameters(), torch.empty(0)).device


def read_taps(
    model: nn.Module,
    taps: Sequence[str],
    batches: Iterable[tuple[B, Tensor]],
    collect: Callable[[B, Mapping[str, Tensor]], None],
) -> None:
    """Features of all batches by the model as it is; hooks are removed afterwards.   batches: each with its images."""
    hooks = FeatureTaps(model, taps)

    def extract(x: Tensor) -> dict[str, Tensor]:
        model(x)
        return hooks.take()

    try:
        read_features(model, extract, batches, collect)
    finally:
        hooks.remove()
        shard_again(model)


def show_progress(batches: Iterable[B], what: str, total: int, count: Callable[[B], int]) -> Iterator[B]:
    """The batches; how many samples have been read is shown by the first process, on standard error if it is a
    terminal.
    """
    shown = sys.stderr.isatty() and distributed.rank() == 0
    done = 0
    for batch in batches:
        yield batch
        done = min(done + count(batch), total)  # processes may repeat some
        if shown:
            print(f"\rreading features: {done:,} of {total:,} {what}", end="", file=sys.stderr, flush=True)
    if shown:
        print(file=sys.stderr)
