"""The preset `recommended` in anybody's loop: weights and offsets of the whole training set, solved before training.

`StableCriterion` needs nothing but batches. This one has to know which sample is which, and gives what was measured.
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
    Without an index the loss is the plain mean: for validation. Its state_dict holds all that is needed to go on.
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
        seed: int = 0,
        batch_size: int = 128,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        if epochs < 1:
            raise UserError(f"epochs must be 1 or more, got {epochs}")
        self._ramp = RAMP * epochs
        self._seen = 0  # samples trained on so far, by all processes
        size = len(samples)
        self.weighting = None if pretrained else DatasetWeighting(size, seed=seed)
        self.offsets = DatasetOffsets(
            size,
            num_classes,
            strength=1.0 if pretrained else BESIDE_WEIGHTS,
            components=PRETRAINED_COMPONENTS if pretrained else 0,
            seed=seed,
        )
        loader = DataLoader(Indexed(samples), batch_size=batch_size, num_workers=num_workers)
        self._read(model, FeatureTaps(model, taps), loader)
        self.told = self._solve()

    def forward(self, outputs: Tensor, targets: Tensor, index: Tensor | None = None) -> Tensor:
        """outputs: (B, C) logits.   targets: (B,).   index: (B,) as `Indexed` gives it.   Returns a scalar."""
        if index is None or not self.training:
            return classify(outputs, targets).mean()
        per_sample = classify(outputs.float() + self.offsets(index), targets)
        if self.weighting is None:
            return per_sample.mean()
        if self._seen // self.offsets.num_samples < self._ramp + 1:
            self._grow()
        self._seen += len(index) * distributed.processes()
        weights: Tensor = self.weighting(index)
        return (weights * per_sample).mean()

    def _grow(self) -> None:
        """Weights grow from epoch to epoch, as long as the ramp is."""
        assert self.weighting is not None
        self.weighting.set_strength(min(1.0, self._seen // self.offsets.num_samples / self._ramp))

    @torch.no_grad()
    def _read(self, model: nn.Module, taps: FeatureTaps, loader: DataLoader[tuple[Any, ...]]) -> None:
        modes = {module: module.training for module in model.modules()}
        model.eval()
        try:
            device = next(model.parameters(), torch.empty(0)).device
            self.to(device)
            for index, x, y, *_ in loader:
                model(x.to(device))
                features = taps.take()
                chosen = features if self.offsets.components else next(iter(features.values()))
                self.offsets.collect(index.to(device), chosen, y.to(device))
                if self.weighting is not None:
                    self.weighting.collect(index.to(device), features, y.to(device))
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

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self._seen)

    def set_extra_state(self, state: Tensor) -> None:
        self._seen = int(state)
