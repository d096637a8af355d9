"""Which epoch to keep: held-out samples judge the network as the source validation of `stablenet train` does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from stablenet.engine.ranking import PENALTY, WORST, validation_rank
from stablenet.errors import UserError
from stablenet.integrations.passes import find_device, read_taps, show_progress
from stablenet.metrics import GroupCounts
from stablenet.weighting import WholeSet, solve_dataset


@dataclass(frozen=True)
class EpochResult:
    """How a network does on held-out samples.   epoch: from 1.

    weighted_accuracy: under weights that make context and label independent, None where training is plain.
    is_best: so far, as `stablenet train` ranks epochs.   note: that it clearly predicts with or against the context.
    """

    epoch: int
    accuracy: float
    loss: float
    weighted_accuracy: float | None
    is_best: bool
    note: str = ""

    def __str__(self) -> str:
        under = "" if self.weighted_accuracy is None else f", {100 * self.weighted_accuracy:.1f} % under weights"
        note = f" ({self.note})" if self.note else ""
        best = ", the best so far" if self.is_best else ""
        return f"epoch {self.epoch}: {100 * self.accuracy:.1f} % of the held-out samples{under}{note}{best}"


class HeldOut(nn.Module):
    """Held-out samples of the training domains.

    loader: of (x, y), always in the same order.   weights: (n,), see `weigh`; ones give plain figures.
    """

    weights: Tensor

    def __init__(self, loader: DataLoader[Any], num_classes: int) -> None:
        super().__init__()
        self._loader, self._classes = loader, num_classes
        self._size = len(loader.dataset)  # type: ignore[arg-type]
        if not self._size:
            raise UserError("no samples are held out: give held_out some that are not trained on, or leave it out")
        self.register_buffer("weights", torch.ones(self._size))
        self._best = (WORST, WORST)

    def weigh(
        self, model: nn.Module, taps: Sequence[str], storage: torch.dtype, progress: bool, overrides: Mapping[str, Any]
    ) -> None:
        """Solve for weights under which the features that the model gives and the label are independent."""
        batches: list[tuple[Tensor, Mapping[str, Tensor]]] = []

        def collect(y: Tensor, features: Mapping[str, Tensor]) -> None:
            batches.append((y, {name: values.to(storage) for name, values in features.items()}))

        read = self._read(find_device(model))
        if progress:
            read = show_progress(read, "held-out samples", self._size, lambda batch: len(batch[1]))
        read_taps(model, taps, ((y, x) for x, y in read), collect)
        labels = torch.cat([y for y, _ in batches])
        layers = {name: torch.cat([features[name] for _, features in batches]) for name in batches[0][1]}
        self.weights.copy_(solve_dataset(layers, labels, **overrides).weights)

    @torch.no_grad()
    def judge(self, model: nn.Module, whole_set: WholeSet, epoch: int) -> EpochResult:
        """The network as it is after an epoch (from 1); where it predicts against the context, offsets are halved."""
        figures = self._validate(model)
        record: dict[str, Any] = {"epoch": epoch, "validation": figures}
        note = ""
        if "weighted_accuracy" in figures:
            _, record[PENALTY], note = whole_set.answer(
                figures["accuracy"], figures["weighted_accuracy"], figures["weighted_count"]
            )
        rank = validation_rank(record)
        best = rank > self._best
        self._best = max(rank, self._best)
        return EpochResult(epoch, figures["accuracy"], figures["loss"], figures.get("weighted_accuracy"), best, note)

    def _validate(self, model: nn.Module) -> Mapping[str, Any]:
        modes = {module: module.training for module in model.modules()}
        model.eval()
        counts, place = None, 0
        plain = bool((self.weights == 1).all())  # then figures are those of plain training, bit for bit
        try:
            for x, y in self._read(find_device(model)):
                outputs = model(x)
                outputs = getattr(outputs, "logits", outputs)  # transformers' models name them
                counts = counts or GroupCounts(1, self._classes, outputs.device)
                weights = None if plain else self.weights[place : place + len(y)].to(outputs.device)
                counts.add(outputs, y, torch.zeros_like(y), weights)
                place += len(y)
        finally:
            for module, training in modes.items():
                module.training = training
        assert counts is not None
        return counts.figures(("all",), tuple(map(str, range(self._classes))))

    def _read(self, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        return ((batch[0].to(device), batch[1].to(device).long()) for batch in self._loader)

    def get_extra_state(self) -> dict[str, Any]:
        return {"best": self._best}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self._best = state["best"]
