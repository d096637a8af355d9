"""What was drawn for a sample, as fields and as one row of numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.data.colour import CONTRAST

COLUMNS = 16  # of a row of numbers: 15, and one that keeps the rows of a batch aligned to 64 bytes


@dataclass(frozen=True)
class Draws:
    """What was drawn for b samples.

    top, left, height, width: (b,) int64, the crop in pixels.   flip, gray: (b,) bool.
    factors: (b, 4) brightness, contrast, saturation and hue.   order: (b, 4) in which they are applied.
    """

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    flip: Tensor
    gray: Tensor
    factors: Tensor
    order: Tensor

    def pack(self) -> Tensor:
        """(b, 16) float32: the fields in turn, then how many changes of colour precede the contrast, and nothing."""
        before = (self.order == CONTRAST).int().argmax(1)
        scalars = (self.top, self.left, self.height, self.width, self.flip, self.gray)
        columns = (*scalars, *self.factors.unbind(1), *self.order.unbind(1), before, torch.zeros_like(before))
        return torch.stack([column.float() for column in columns], 1)

    @classmethod
    def unpack(cls, rows: Tensor) -> Draws:
        """The same draws from their rows (b, 16): all whole numbers among them are exact in float32."""
        top, left, height, width = rows[:, :4].long().unbind(1)
        flip, gray = (rows[:, 4:6] > 0).unbind(1)
        return cls(top, left, height, width, flip, gray, rows[:, 6:10], rows[:, 10:14].long())
