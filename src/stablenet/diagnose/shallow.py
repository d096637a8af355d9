"""Shallow features of a pretrained network: its first two stages, pooled as the preset `recommended` pools them.

Those without a network are `stablenet.weighting.border`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from stablenet.errors import UserError
from stablenet.models import FeatureTaps, build_network
from stablenet.weighting import pool_maps
from stablenet.weighting.border import pool_border
from stablenet.weighting.recommended import TAPS

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # what published ImageNet weights were trained with


class ShallowStages:
    """Features of the first two stages; the network is run no further."""

    def __init__(self, name: str, pretrained: str, root: Path | None = None) -> None:
        if not pretrained:
            raise UserError(
                f"the backbone {name} has no weights: give --pretrained imagenet or a .safetensors file, "
                "or leave --backbone out to use the hand-made features"
            )
        network = build_network(name, 1, pretrained=pretrained, root=root).eval()
        missing = [stage for stage in TAPS if stage not in network.stages]
        if missing:
            raise UserError(f"the backbone {name} has no {missing[0]}: choose one with stages, such as resnet50")
        self._body = network.body
        self._taps = FeatureTaps(network.body, TAPS, stages=network.stages, pool=_pool_both)
        self.description = f"{name} with the weights {Path(pretrained).name}: pooled maps of its first two stages"

    @torch.no_grad()
    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """pixels: (b, s, s, 3) uint8.   Returns features of the whole image and of its border, (b, m) each."""
        images = pixels.permute(0, 3, 1, 2).float() / 255
        with self._taps.stop_early():
            self._body((images - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None])
        whole, border = torch.cat(list(self._taps.take().values()), 2)
        return whole, border


def _pool_both(maps: Tensor) -> Tensor:
    """Maps (b, c, h, w) pooled over the image and over its border: (2, b, 2c)."""
    if maps.ndim != 4:
        raise UserError("the stages of this backbone give no maps of positions: choose a convolutional one")
    return torch.stack([pool_maps(maps), pool_border(maps)])
