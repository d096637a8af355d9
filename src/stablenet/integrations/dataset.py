"""How `recommended` trains, in anybody's loop: weights and offsets of the whole training set, solved before training.

`StableCriterion` needs nothing but batches, and its weights are those of batches. This one has to know which sample is
which. What it leaves to the loop is the choice of an epoch, which `stablenet train` makes under weights, too, and the
look at whether the network has come to answer against the context (`context_use`, then `criterion.offsets.weaken()`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from stablenet.errors import UserError
from stablenet.integrations.losses import classify
from stablenet.integrations.taps import FeatureTaps
from stablenet.weighting import DatasetOffsets, DatasetWeighting, distributed
from stablenet.weighting.dataset import RAMP
from stablenet.weighting.offsets import BESIDE_WEIGHTS, PRETRAINED_COMPONENTS

GROWTH = 16  # steps from ones to the solved weights


class Samples(Protocol):
    """A data set of images and classes, by position."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Any: ...


class Indexed(Dataset[tuple[Any, ...]]):
    """A data set whose items begin with their index: (x, y) becomes (index, x, y).

    >>> Indexed([("image", 3)])[0]
    (0, 'image', 3)
    """

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, place: int) -> tuple[Any, ...]:
        return (place, *self.samples[place])


class DatasetCriterion(nn.Module):
    """mean(w · CE(logits + offset, y)), weights and offsets by the samples' indices.

    >>> from torch.utils.data import TensorDataset
    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    >>> samples = TensorDataset(torch.randn(40, 3, 6, 6), torch.arange(40) % 2)
    >>> criterion = DatasetCriterion(model, ["1"], samples, num_classes=2, epochs=3)
    >>> for index, x, y in DataLoader(Indexed(samples), batch_size=8, shuffle=True):
    ...     criterion(model(x), y, index).backward()

    model: as it starts, untrained or pretrained; it is run once over all samples here, without gradients and dropout.
    taps: paths of early modules, where context shows, the first one first; of a ResNet "layer1" and "layer2".
    samples: the training set, (x, y) by position, y an integer class, as far as possible without augmentation.
    pretrained: whether the model was trained on other images. Such a network soon fits every sample, and what is fitted
        cannot be weighed: it gets offsets of the taps' leading components, and no weights. Any other gets weights of
        all taps, which grow over the first sixth of the epochs, and half the offsets of the first tap.
    told: what was found: `context_explains`, the share of the label's entropy that the offsets tell, and with weights
        `dependence_before`, `dependence_after` and `ess_ratio`.
    offset: how much of the offsets is added; None takes half of them beside weights and all in their place.
    storage: of the features until they are solved from; float32 for activations above 65,504.
    In `eval()` the loss is the plain mean. Its state_dict holds all that is needed to go on. Of several processes each
    reads all samples.
    """

    def __init__(
        self,
        model: nn.Module,
        taps: Sequence[str],
        samples: Samples,
        *,
        num_classes: int,
        epochs: int,
        pretrained: bool = False,
        offset: float | None = None,
        seed: int = 0,
        storage: torch.dtype = torch.float16,
        batch_size: int = 128,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        if epochs < 1:
            raise UserError(f"epochs must be 1 or more, got {epochs}")
        indexed = samples if isinstance(samples, Indexed) else Indexed(samples)
        size = len(indexed)
        self._ramp = RAMP * epochs * size
        self._seen = 0  # samples trained on so far, by all processes
        self._level = -1  # of the weights, the latest that was set
        self.weighting = None if pretrained else DatasetWeighting(size, seed=seed, storage=storage)
        usual = 1.0 if pretrained else BESIDE_WEIGHTS
        self.offsets = DatasetOffsets(
            size,
            num_classes,
            strength=usual if offset is None else offset,
            components=PRETRAINED_COMPONENTS if pretrained else 0,
            seed=seed,
            storage=storage,
        )
        generator = torch.Generator()  # or the loader would draw from the one that everything else draws from
        loader = DataLoader(indexed, batch_size=batch_size, num_workers=num_workers, generator=generator)
        self._read(model, FeatureTaps(model, taps), loader)
        self.told = self._solve()

    def forward(self, outputs: Tensor, targets: Tensor, index: Tensor | None = None) -> Tensor:
        """outputs: (B, C) logits.   targets: (B,).   index: (B,) as `Indexed` gives it.   Returns a scalar."""
        targets = targets if targets.is_floating_point() else targets.long()
        if not self.training:
            return classify(outputs, targets).mean()
        self._check(outputs, index)
        per_sample = classify(outputs + self.offsets(index), targets)
        if self.weighting is None:
            return per_sample.mean()
        self._grow(self.weighting, len(outputs) * distributed.processes())
        weights: Tensor = self.weighting(index)
        return (weights * per_sample).mean()

    def _check(self, outputs: Tensor, index: Tensor | None) -> None:
        classes = self.offsets.offsets.shape[1]
        if outputs.ndim != 2 or outputs.shape[1] != classes:
            raise UserError(f"outputs must be logits (batch, {classes}), got {tuple(outputs.shape)}")
        if index is None:
            raise UserError(
                "in training the criterion needs the samples' indices: load Indexed(samples), which gives them first, "
                "and call criterion(outputs, targets, index); for validation call criterion.eval() before"
            )
        if index.shape != (len(outputs),):
            raise UserError(f"index must have one entry per sample, shape ({len(outputs)},), got {tuple(index.shape)}")

    def _grow(self, weighting: DatasetWeighting, count: int) -> None:
        """Weights grow in equal steps, by the samples seen before these."""
        level = int(GROWTH * min(1.0, self._seen / self._ramp))
        if level != self._level:
            weighting.set_strength(level / GROWTH)
        self._level = level
        self._seen += count

    @torch.no_grad()
    def _read(self, model: nn.Module, taps: FeatureTaps, loader: DataLoader[tuple[Any, ...]]) -> None:
        modes = {module: module.training for module in model.modules()}
        model.eval()
        try:
            device = next(model.parameters(), torch.empty(0)).device
            for batch in loader:
                index, x, y = (part.to(device) for part in batch[:3])
                model(x)
                features = taps.take()
                chosen = features if self.offsets.components else next(iter(features.values()))
                self.offsets.collect(index, chosen, y.long())
                if self.weighting is not None:
                    self.weighting.collect(index, features, y.long())
        finally:
            taps.remove()
            for module, training in modes.items():
                module.training = training

    def _solve(self) -> dict[str, float]:
        told = {"context_explains": self.offsets.solve().explained}
        if self.weighting is not None:
            before, after = self.weighting.solve().dependence.tolist()
            told |= {"dependence_before": before, "dependence_after": after, "ess_ratio": float(self.weighting.ess)}
        return told

    def get_extra_state(self) -> dict[str, Any]:
        return {"seen": self._seen, "told": self.told}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self._seen, self.told, self._level = state["seen"], state["told"], -1
