"""Shallow features, with and without a network: context shows in them, the object's shape hardly does.

Without a network: colours and local contrasts, pooled over the image and over its border; what the border predicts is
predicted where the object mostly is not. With one: the first two stages, pooled as the preset `recommended` pools them.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from stablenet.errors import UserError
from stablenet.models import FeatureTaps, build_network
from stablenet.weighting import pool_maps
from stablenet.weighting.recommended import TAPS

BORDER = 8  # the border is one part in eight of the side, on each side
SCALES = (1, 2, 4)  # pixels between the two ends of a contrast

DESCRIPTION = (
    "hand-made: mean and spread of colours, colour differences and contrasts in four directions at three scales"
)


def extract_bank(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """pixels: (b, s, s, 3) uint8.   Returns features of the whole image and of its border, (b, 36) each."""
    maps = draw_maps(pixels.permute(0, 3, 1, 2).float() / 255)
    return pool_maps(maps), pool_border(maps)


def draw_maps(images: Tensor) -> Tensor:
    """Images (b, 3, s, s) in 0..1 to maps (b, 18, s, s): colours, their differences, absolute contrasts."""
    red, green, blue = images.unbind(1)
    differences = torch.stack([red - green, (red + green) / 2 - blue, images.amax(1) - images.amin(1)], 1)
    grey = images.mean(1, keepdim=True)
    contrasts = [contrast for distance in SCALES for contrast in _draw_contrasts(grey, distance)]
    return torch.cat([images, differences, *contrasts], 1)


def _draw_contrasts(grey: Tensor, distance: int) -> list[Tensor]:
    """|difference| across, down and along both diagonals, (b, 1, s, s) each; zero where the image ends."""
    across = pad(grey[..., distance:] - grey[..., :-distance], (0, distance))
    down = pad(grey[..., distance:, :] - grey[..., :-distance, :], (0, 0, 0, distance))
    half = 0.5**0.5
    return [across.abs(), down.abs(), half * (across + down).abs(), half * (across - down).abs()]


def pool_border(maps: Tensor) -> Tensor:
    """As `pool_maps`, over the border alone.   maps: (b, c, h, w).   Returns (b, 2c)."""
    return pool_maps(maps[:, :, mask_border(*maps.shape[2:])])


def mask_border(height: int, width: int) -> Tensor:
    """(h, w) bool: the outermost eighth on each side, at least one position wide."""
    mask = torch.ones(height, width, dtype=torch.bool)
    top, left = max(1, height // BORDER), max(1, width // BORDER)
    mask[top : height - top, left : width - left] = False
    return mask


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
