"""`recommended` in any training loop: weights and offsets of the whole training set, solved before training.

It needs the index of every sample. With held-out samples it also chooses the epoch, as `stablenet train` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from stablenet.errors import UserError
from stablenet.integrations.criterion import classify
from stablenet.integrations.held_out import EpochResult, HeldOut
from stablenet.integrations.passes import (
    Indexed,
    OwnRange,
    SizedDataset,
    find_device,
    read_taps,
    refuse_different,
    shard_again,
    show_progress,
)
from stablenet.models.families import find_stages
from stablenet.models.taps import list_places
from stablenet.values import Count, NonNegative, Seed, Whole, check_arguments, show
from stablenet.weighting import DatasetOffsets, DatasetWeighting, WholeSet, distributed, recommended
from stablenet.weighting.chunks import MemorySize
from stablenet.weighting.evidence import EvidenceSums, UnitRange, describe_images


def check_classes(y: Tensor) -> None:
    """Refuse targets of a regression, and several labels for a sample, before they are cut to whole numbers."""
    if y.ndim != 1 or y.is_floating_point() or y.is_complex():
        raise UserError(
            f"every sample needs one class, a whole number, got a batch of {y.dtype} with the shape {tuple(y.shape)}: "
            "weights and offsets for a regression, or for several labels of one image, are not implemented"
        )


def check_contexts(contexts: Any, size: int) -> None:
    """Refuse contexts that are no numbers from 0 on, one for each of `size` samples."""
    fits = isinstance(contexts, Tensor) and contexts.shape == (size,) and not contexts.is_floating_point()
    if not fits or contexts.is_complex() or int(contexts.min()) < 0:
        raise UserError(
            f"contexts must be a tensor of whole numbers from 0 on, one for each of the {size} samples, "
            f"got {show(contexts)}"
        )


def choose_places(model: nn.Module, pretrained: bool) -> tuple[str, ...]:
    """The taps that the preset chooses, as paths of modules."""
    stages = find_stages(model)
    if not stages:
        raise UserError(
            f"the stages of a {type(model).__name__} are not known, as those of torchvision's and timm's networks are: "
            "name early modules of it, such as ['layer1', 'layer2'], instead of None"
        )
    chosen = (tap.partition(":") for tap in recommended.choose_taps(stages, pretrained))
    return tuple(f"{stages[stage]}{colon}{form}" for stage, colon, form in chosen)


class DatasetCriterion(nn.Module):
    """mean(w · CE(logits + offset, y)), weights and offsets by the samples' indices.

    >>> from torch.utils.data import TensorDataset
    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    >>> samples = TensorDataset(torch.randn(40, 3, 6, 6), torch.arange(40) % 2)
    >>> criterion = DatasetCriterion(model, ["1"], samples, num_classes=2, epochs=3)
    >>> for index, x, y in DataLoader(Indexed(samples), batch_size=8, shuffle=True):
    ...     criterion(model(x), y, index).backward()

    Printing it says what it found and does.

    model: as it starts, untrained or pretrained; it is run once over all samples here, without gradients and dropout.
    taps: paths of early modules, where context shows, the first one first; of a ResNet "layer1" and "layer2", of a
        pretrained one also "layer3:border", its third stage at the border of the image. For a network of torchvision or
        timm, None takes those that `recommended.choose_taps` names.
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
    held_out: samples like the training ones that are not trained on. `judge(model)` after every epoch then says whether
        it is the best so far; without them, the choice of the epoch is up to you.
    progress: whether the number of samples read is shown, on standard error if it is a terminal.
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
        taps: Sequence[str] | None,
        samples: SizedDataset,
        *,
        num_classes: Count,
        epochs: Count,
        pretrained: bool = False,
        offset: NonNegative | None = None,
        act: Literal["auto", "always"] = "auto",
        contexts: Tensor | None = None,
        held_out: SizedDataset | None = None,
        progress: bool = True,
        seed: Seed = 0,
        storage: torch.dtype = torch.float16,
        memory: MemorySize | None = None,
        features: str | Path = "device",
        batch_size: Count = 128,
        num_workers: Whole = 0,
    ) -> None:
        check_arguments(DatasetCriterion.__init__, locals())
        super().__init__()
        indexed = samples if isinstance(samples, Indexed) else Indexed(samples)
        self._size, self._classes, self._epochs = len(indexed), num_classes, epochs
        if contexts is not None:
            check_contexts(contexts, self._size)
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
        self._taps = choose_places(model, pretrained) if taps is None else list_places(taps)
        refuse_different(model)
        generator = torch.Generator()  # or the loader would draw from the one that everything else draws from
        share = OwnRange(self._size)
        options: dict[str, Any] = {"batch_size": batch_size, "num_workers": num_workers, "generator": generator}
        known = 0 if contexts is None else int(contexts.max()) + 1
        sums = EvidenceSums(num_classes, known, shared=distributed.processes() > 1) if act == "auto" else None
        loader = DataLoader(indexed, sampler=share, **options)
        self._read(model, loader, len(share.own), sums, contexts, progress)
        self.decision = None if sums is None else recommended.decide(sums.weigh(), by_contexts=True)
        if self.decision is not None:
            self.whole_set.settle(self.decision)
        self.diagnostics = {**({} if self.decision is None else self.decision.figures), **self.whole_set.solve()}
        self.whole_set.set_epoch(0, epochs)
        self.held_out: HeldOut | None = None
        if held_out is not None:
            held: DataLoader[Any] = DataLoader(held_out, **options)  # type: ignore[arg-type]
            self.held_out = HeldOut(held, num_classes).to(find_device(model))
            if self.whole_set.act:
                self.held_out.weigh(model, self._taps, storage, progress, {"seed": seed, **plan.overrides})

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

    def __repr__(self) -> str:
        """What it found and does, a line each."""
        lines = [
            f"{self._size:,} samples of {self._classes} classes, features of {', '.join(self._taps)}",
            *self._describe_training(),
            f"epoch {self._epoch + 1} of {self._epochs}",
        ]
        if self.held_out is not None:
            lines.append(f"{len(self.held_out.weights):,} held-out samples choose the epoch")
        return "\n  ".join(["DatasetCriterion(", *lines]) + "\n)"

    def _describe_training(self) -> Iterator[str]:
        why = "without asking whether it helps" if self.decision is None else self.decision.reason
        if not self.whole_set.act:
            yield f"trains plainly: {why}"
            return
        yield f"acts: {why}"
        if self.offsets is not None:
            explained = 100 * float(self.diagnostics["context_explains"])
            yield f"offsets × {self.whole_set.plan.offset:g} on the logits; they explain {explained:.0f} % of the label"
        if self.weighting is None:
            yield "weights: even"
        else:
            found, ramp = self.diagnostics, self.whole_set.plan.ramp * self._epochs
            effective = f"{100 * float(found['ess_ratio']):.0f} % of the samples effective"
            yield f"weights: grow over {ramp:.1f} epochs, up to {found['largest_weight']:.1f}; {effective}"

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

    def judge(self, model: nn.Module) -> EpochResult:
        """Call it after every epoch: how the network does on the held-out samples, and whether it is the best so far.

        If it clearly predicts against the context, the offsets are halved. Each of several processes reads all of them.
        """
        if self.held_out is None:
            raise UserError(
                "no samples were held out: give DatasetCriterion(held_out=…) some that are not trained on, and it "
                "judges every epoch by them"
            )
        result = self.held_out.judge(model, self.whole_set, self._epoch + 1)
        shard_again(model)
        return result

    def _read(
        self,
        model: nn.Module,
        loader: Iterable[Any],
        left: int,
        sums: EvidenceSums | None,
        contexts: Tensor | None,
        progress: bool,
    ) -> None:
        """left: how many samples the loader gives before it repeats some."""
        device = find_device(model)
        unit = UnitRange(shared=distributed.processes() > 1)

        def collect(batch: tuple[Tensor, Tensor, Tensor], features: Mapping[str, Tensor]) -> None:
            nonlocal left
            index, x, y = batch
            check_classes(y)
            if sums is not None:
                once, left = min(left, len(index)), left - min(left, len(index))
                known = None if contexts is None else contexts[index.cpu()].to(y.device)[:once]
                images = x.ndim == 4 and x.is_floating_point()
                described = describe_images(unit(x)[:once]) if images else None
                sums.add(y[:once], index[:once], described, known)
            self.whole_set.collect(index, features, y.long())

        if progress:
            each = distributed.processes()
            loader = show_progress(loader, "training samples", self._size, lambda batch: len(batch[0]) * each)
        moved = ([part.to(device) for part in batch[:3]] for batch in loader)
        read_taps(model, self._taps, (((index, x, y), x) for index, x, y in moved), collect)

    def get_extra_state(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "seen": self._seen, "diagnostics": self.diagnostics}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self._epoch, self._seen, self.diagnostics = state["epoch"], state["seen"], state["diagnostics"]
