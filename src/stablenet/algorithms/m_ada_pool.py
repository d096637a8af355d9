"""The images of all augmented domains, kept for the rest of the training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stablenet.randomness import combine
from stablenet.weighting.memory import adopt_saved_shapes


class AugmentedPool(nn.Module):
    """images: (n, 3, s, s) in half precision, finer than the 8 bits images come in.   labels: (n,).
    domain: (n,) the number of the augmented domain.
    """

    images: Tensor
    labels: Tensor
    domain: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("images", torch.empty(0, dtype=torch.float16))
        self.register_buffer("labels", torch.empty(0, dtype=torch.int64))
        self.register_buffer("domain", torch.empty(0, dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def add(self, images: Tensor, labels: Tensor, domain: int) -> None:
        """A new domain: images (b, 3, s, s), labels (b,)."""
        images = images.half()
        self.images = torch.cat([self.images, images]) if len(self) else images
        self.labels = torch.cat([self.labels, labels])
        self.domain = torch.cat([self.domain, torch.full_like(labels, domain)])

    def draw(self, number: int, seed: int, step: Tensor) -> tuple[Tensor, Tensor]:
        """`number` images of all domains with their labels, a function of the seed and the step (a scalar)."""
        keys = combine(seed, step, torch.arange(number, device=step.device))
        rows = keys.remainder(len(self))
        return self.images[rows].float(), self.labels[rows]

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        adopt_saved_shapes(self, ("images", "labels", "domain"), state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)
