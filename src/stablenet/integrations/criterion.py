"""Losses with StableNet for any training loop: called like any criterion, `loss = criterion(model(x), y)`.

`StableCriterion` needs only batches, and its weights are those of batches. `DatasetCriterion` is the preset
`recommended` with weights and offsets of the whole training set, solved before training, so it needs the index of every
sample. It leaves two things to the loop: the choice of an epoch, for which `stablenet train` also uses weights, and the
check whether the network predicts against the context (`context_use`, then `criterion.offsets.weaken()`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, Dataset, Sampler

from stablenet.errors import UserError
from stablenet.models import FeatureTaps, read_features
from stablenet.registry import Registry
from stablenet.weighting import DatasetOffsets, DatasetWeighting, StableWeighting, WholeSet, distributed, recommended
from stablenet.weighting.evidence import EvidenceSums, UnitRange, describe_images
from stablenet.weighting.samples import pass_range


@dataclass(frozen=True)
class PerSampleLoss:
    """compute: outputs and targets to a loss (B,).   columns: targets to labels of the weighting, (B,) or (B, C)."""

    compute: Callable[[Tensor, Tensor], Tensor]
    columns: Callable[[Tensor], Tensor]


LOSSES: Registry[PerSampleLoss] = Registry("loss")


def classify(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy (B,).   logits: (B, C).   targets: (B,) classes, or (B, C) soft ones as mixup gives."""
    return functional.cross_entropy(logits, targets, reduction="none")


def regress(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error (B,) over whatever a sample has.   outputs, targets: (B,) or (B, …), the same shape."""
    squared = functional.mse_loss(outputs.reshape(targets.shape), targets, reduction="none")
    return squared.reshape(len(targets), -1).mean(1)


def classify_many(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy (B,), mean over the C labels that a sample may have at once.   both: (B, C)."""
    each = functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
    return each.mean(1)


def _flatten(targets: Tensor) -> Tensor:
    return targets.reshape(len(targets), -1).float()


LOSSES.add("classification", PerSampleLoss(classify, lambda targets: targets))
LOSSES.add("regression", PerSampleLoss(regress, _flatten))
LOSSES.add("multi-label", PerSampleLoss(classify_many, _flatten))


class StableCriterion(nn.Module):
    """mean(w · loss), w from the features that the model's own modules gave in its latest forward pass.

    >>> import torch
    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    >>> criterion = StableCriterion(model, ["0"], seed=0)
    >>> loss = criterion(model(torch.randn(8, 3, 6, 6)), torch.arange(8) % 2)
    >>> loss.backward()

    taps: paths of modules, one or several; for the preset `recommended` early ones, where context shows.
    loss: "classification", "regression", "multi-label", or a `PerSampleLoss` of one's own.
    overrides: fields of `WeightingSettings`.
    When the model is in `eval()` the loss is the plain mean. The memory is in the criterion's state_dict: save it with
    the model's to resume exactly.
    """

    def __init__(
        self,
        model: nn.Module,
        taps: Sequence[str],
        *,
        loss: str | PerSampleLoss = "classification",
        preset: str = "recommended",
        **overrides: Any,
    ) -> None:
        super().__init__()
        self.taps = FeatureTaps(model, taps)
        self.loss = LOSSES[loss] if isinstance(loss, str) else loss
        self.weighting = StableWeighting(preset, **overrides)
        self.last_weights: Tensor | None = None

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """outputs: what the model gave.   targets: (B,) or (B, …), as the loss takes them.   Returns a scalar."""
        per_sample = self.loss.compute(outputs, targets)
        features = self.taps.take()
        if not self.taps.training:
            return per_sample.mean()
        self.last_weights = self.weighting(features, labels=self.loss.columns(targets))
        return (self.last_weights * per_sample).mean()


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


class DatasetCriterion(nn.Module):
    """mean(w · CE(logits + offset, y)), weights and offsets by the samples' indices.

    >>> from torch.utils.data import TensorDataset
    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    >>> samples = TensorDataset(torch.randn(40, 3, 6, 6), torch.arange(40) % 2)
    >>> criterion = DatasetCriterion(model, ["1"], samples, num_classes=2, epochs=3)
    >>> for index, x, y in DataLoader(Indexed(samples), batch_size=8, shuffle=True):
    ...     criterion(model(x), y, index).backward()

    model: as it starts, untrained or pretrained; it is run once over all samples here, without gradients and dropout.
    taps: paths of early modules, where context shows, the first one first; of a ResNet "layer1" and "layer2", of a
        pretrained one also "layer3:border", its third stage at the border of the image.
    samples: the training set, (x, y) by position, y an integer class, as far as possible without augmentation.
    pretrained: whether the model was trained on other images. `recommend` says what follows: such a network gets one
        and a half times the offsets of the taps' leading components, and even weights; any other gets weights of all
        taps, which grow over the first sixth of the epochs, and half the offsets of the first tap.
    act: "auto" checks first whether context and label are correlated (`recommended.decide`); if they are not, the
        criterion is the plain cross-entropy, bit for bit. "always" does not check.
    contexts: (N,) the known context of every sample (site, season, domain), numbered from 0. If given, they alone
        decide whether to act, as `act="domains"` does in `stablenet train`; None lets the images decide.
    decision: what was decided, why, and on which evidence; None with act="always".
    diagnostics: of the solve: `ess_ratio` and `largest_weight` of the weights at their full strength,
        `context_explains`, the share of the label's entropy that the offsets' regression predicts, and with weights
        `dependence_before` and `dependence_after`.
    offset: how much of the offsets is added; None takes what `recommend` chooses, see `pretrained`.
    storage: of the features until they are solved from; float32 for activations above 65,504.
    memory: what the solve may take beside them, such as "4GiB"; None takes half of what is free, at most 4GiB. A set
        that needs more is solved chunk by chunk, which is the same to rounding.
    features: where they are kept until then: on the model's "device", on the "host", or in a memory-mapped file in this
        folder, on a fast disk. The result is the same.
    Weights grow from epoch to epoch, as in `stablenet train`. A new epoch is taken to begin with the batch that would
    exceed the number of samples, so loaders may drop a short last batch or keep it. In `eval()` the loss is the plain
    mean. Its state_dict holds everything needed to resume. Each of several processes reads its own range of the samples
    and holds the result for all, so any distributed sampler works. The model may be wrapped in
    `DistributedDataParallel` or sharded by `fully_shard`.
    """

    def __init__(
        self,
        model: nn.Module,
        taps: Sequence[str],
        samples: SizedDataset,
        *,
        num_classes: int,
        epochs: int,
        pretrained: bool = False,
        offset: float | None = None,
        act: Literal["auto", "always"] = "auto",
        contexts: Tensor | None = None,
        seed: int = 0,
        storage: torch.dtype = torch.float16,
        memory: str | None = None,
        features: str | Path = "device",
        batch_size: int = 128,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        if epochs < 1:
            raise UserError(f"epochs must be 1 or more, got {epochs}")
        indexed = samples if isinstance(samples, Indexed) else Indexed(samples)
        self._size, self._classes, self._epochs = len(indexed), num_classes, epochs
        self._epoch, self._seen = 0, 0  # the epoch in work, and samples seen in it by all processes
        plan = recommended.recommend(pretrained=pretrained, offset=offset)
        self.whole_set = WholeSet(
            plan,
            self._size,
            num_classes,
            preset=recommended.NAME,
            fold_seed=seed,
            overrides={"seed": seed, **plan.overrides},
            storage=storage,
            memory=memory,
            place=features,
        )
        model = model.module if isinstance(model, DistributedDataParallel) else model
        refuse_different(model)
        generator = torch.Generator()  # or the loader would draw from the one that everything else draws from
        share = OwnRange(self._size)
        options: dict[str, Any] = {"batch_size": batch_size, "num_workers": num_workers, "generator": generator}
        known = 0 if contexts is None else int(contexts.max()) + 1
        sums = EvidenceSums(num_classes, known, shared=distributed.processes() > 1) if act == "auto" else None
        loader = DataLoader(indexed, sampler=share, **options)
        self._read(model, FeatureTaps(model, taps), loader, len(share.own), sums, contexts)
        self.decision = None if sums is None else recommended.decide(sums.weigh(), by_contexts=True)
        if self.decision is not None:
            self.whole_set.settle(self.decision)
        self.diagnostics = {**({} if self.decision is None else self.decision.figures), **self.whole_set.solve()}
        self.whole_set.set_epoch(0, epochs)

    def forward(self, outputs: Tensor, targets: Tensor, index: Tensor | None = None) -> Tensor:
        """outputs: (B, C) logits.   targets: (B,).   index: (B,) as `Indexed` gives it.   Returns a scalar."""
        targets = targets if targets.is_floating_point() else targets.long()
        if not self.training:
            return classify(outputs, targets).mean()
        index = self._check(outputs, index)
        self._count(len(outputs))
        weights, offsets = self.whole_set(index)
        per_sample = classify(outputs if offsets is None else outputs + offsets, targets)
        return per_sample.mean() if weights is None else (weights * per_sample).mean()

    @property
    def weighting(self) -> DatasetWeighting | None:
        """The weights of all samples; None where they are even."""
        return self.whole_set.weighting

    @property
    def offsets(self) -> DatasetOffsets | None:
        """The offsets of all samples; None where there are none."""
        return self.whole_set.offsets

    def _check(self, outputs: Tensor, index: Tensor | None) -> Tensor:
        if outputs.ndim != 2 or outputs.shape[1] != self._classes:
            raise UserError(f"outputs must be logits (batch, {self._classes}), got {tuple(outputs.shape)}")
        if index is None:
            raise UserError(
                "in training the criterion needs the samples' indices: load Indexed(samples), which gives them first, "
                "and call criterion(outputs, targets, index); for validation call criterion.eval() before"
            )
        if index.shape != (len(outputs),):
            raise UserError(f"index must have one entry per sample, shape ({len(outputs)},), got {tuple(index.shape)}")
        return index

    def _count(self, batch: int) -> None:
        """Count a batch; the next epoch begins with the batch that would exceed this one."""
        processes = distributed.processes()
        total = batch * processes
        if self._seen and self._seen + total > self._size + processes - 1:  # samplers repeat samples to share evenly
            self._epoch, self._seen = self._epoch + 1, 0
            self.whole_set.set_epoch(self._epoch, self._epochs)
        self._seen += total

    def _read(
        self,
        model: nn.Module,
        taps: FeatureTaps,
        loader: DataLoader[tuple[Any, ...]],
        left: int,
        sums: EvidenceSums | None,
        contexts: Tensor | None,
    ) -> None:
        """left: how many samples the loader gives before it repeats some."""
        device = next(model.parameters(), torch.empty(0)).device
        unit = UnitRange(shared=distributed.processes() > 1)

        def extract(x: Tensor) -> dict[str, Tensor]:
            model(x)
            return taps.take()

        def collect(batch: tuple[Tensor, Tensor, Tensor], features: Mapping[str, Tensor]) -> None:
            nonlocal left
            index, x, y = batch
            if sums is not None:
                once, left = min(left, len(index)), left - min(left, len(index))
                known = None if contexts is None else contexts[index.cpu()].to(y.device)[:once]
                images = x.ndim == 4 and x.is_floating_point()
                described = describe_images(unit(x)[:once]) if images else None
                sums.add(y[:once], index[:once], described, known)
            self.whole_set.collect(index, features, y.long())

        moved = ([part.to(device) for part in batch[:3]] for batch in loader)
        try:
            read_features(model, extract, (((index, x, y), x) for index, x, y in moved), collect)
        finally:
            taps.remove()
            shard_again(model)

    def get_extra_state(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "seen": self._seen, "diagnostics": self.diagnostics}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self._epoch, self._seen, self.diagnostics = state["epoch"], state["seen"], state["diagnostics"]
