"""Random numbers of a method that are functions of (seed, step, sample): a resumed run draws the same."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stablenet.data.counter import combine, draw_uniform, mix


class StepDraws(nn.Module):
    """Counts its calls in a buffer, so that every step has numbers of its own and a checkpoint knows the step.

    Nothing leaves the device. A sample's numbers do not depend on its batch or process.
    """

    seed: Tensor
    step: Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.register_buffer("seed", combine(seed), persistent=False)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self, index: Tensor, count: int) -> Tensor:
        """`count` uniform numbers in [0, 1) for every sample: index (b,) int64 -> (b, count)."""
        key = mix(mix(self.seed ^ self.step) ^ index)
        self.step += 1
        uniform: Tensor = draw_uniform(key, count)
        return uniform
