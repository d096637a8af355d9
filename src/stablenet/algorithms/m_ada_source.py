"""The source images as M-ADA needs them: their range of values, small copies of all, some of them whole."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stablenet.algorithms.base import TrainingSet
from stablenet.algorithms.m_ada_ascent import shrink


class PixelScale(nn.Module):
    """Between the network's inputs and [0, 1], by the smallest and largest value of every channel in the source.

    Where some pixel is black and some white this undoes the normalisation, which a method does not know.
    """

    low: Tensor
    span: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.zeros(1, 3, 1, 1))
        self.register_buffer("span", torch.ones(1, 3, 1, 1))

    def measure(self, training_set: TrainingSet) -> None:
        """Look at all source images."""
        extremes = [torch.stack([b.x.amin((0, 2, 3)), b.x.amax((0, 2, 3))]) for b in training_set.batches()]
        low, high = torch.stack(extremes)[:, 0].amin(0), torch.stack(extremes)[:, 1].amax(0)
        self.low.copy_(low.view(1, 3, 1, 1))
        self.span.copy_((high - low).clamp(min=1e-6).view(1, 3, 1, 1))  # a channel may be constant

    def to_unit(self, inputs: Tensor) -> Tensor:
        return (inputs - self.low) / self.span

    def to_input(self, images: Tensor) -> Tensor:
        return images * self.span + self.low


def copy_source(training_set: TrainingSet, scale: PixelScale, side: int) -> Tensor:
    """All source images, small: (n, 3·side²) in [0, 1]."""
    return torch.cat([shrink(scale.to_unit(batch.x), side) for batch in training_set.batches()])


def pick_source(training_set: TrainingSet, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The images (b, 3, s, s) and labels (b,) of samples whose index is set in chosen (num_samples,)."""
    rows = []
    for batch in training_set.batches():
        kept = chosen[batch.index]
        rows.append((batch.x[kept], batch.y[kept]))
    images, labels = zip(*rows, strict=True)
    return torch.cat(images), torch.cat(labels)


def choose_rows(total: int, number: int, generator: torch.Generator) -> Tensor:
    """A mask (total,) with `number` places set, or all where there are fewer."""
    mask = torch.zeros(total, dtype=torch.bool, device=generator.device)
    mask[torch.randperm(total, generator=generator, device=generator.device)[:number]] = True
    return mask
