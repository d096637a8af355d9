"""FAR's stage: maps normalised per image, and what that took away given back where a gate finds it useful."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from stablenet.errors import UserError
from stablenet.models import Network

_TINY = 1e-5  # beside a variance
_NARROWEST = 8  # hidden units of a gate: two or four, as small networks would have, may all be dead from the start


class Parts(NamedTuple):
    """Of one stage, (b, c, positions) each: its maps, these normalised, and with the two parts of the residual."""

    maps: Tensor
    normalised: Tensor
    useful: Tensor
    useless: Tensor


class RestoredStage(nn.Module):
    r"""A stage followed by F̃ = (F − μ)/σ over each image's positions, R = F − F̃, a = gate(mean of R), F̃ + a·R.

    F: the stage's maps (b, c, h, w).   μ, σ: (b, c).   a: (b, c) in (0, 1); a = 1 gives F back as it was.
    """

    def __init__(self, stage: nn.Module, channels: int, reduction: int) -> None:
        super().__init__()
        self.stage = stage
        self.channels = channels
        narrow = max(_NARROWEST, channels // reduction)
        self.gate = nn.Sequential(nn.Linear(channels, narrow), nn.ReLU(), nn.Linear(narrow, channels), nn.Sigmoid())
        self._parts: Parts | None = None

    def forward(self, maps: Tensor) -> Tensor:
        maps = self.stage(maps)
        if maps.ndim != 4 or maps.shape[1] != self.channels:
            raise UserError(
                f"FAR expected maps of {self.channels} channels and got {tuple(maps.shape)}: "
                "choose a backbone whose stages end in BatchNorm, such as a ResNet"
            )
        parts = self.split(maps.flatten(2))
        if self.training:
            self._parts = parts
        return parts.useful.view_as(maps)

    def split(self, maps: Tensor) -> Parts:
        """maps: (b, c, positions)."""
        variance, mean = torch.var_mean(maps, 2, correction=0, keepdim=True)
        normalised = (maps - mean) * torch.rsqrt(variance + _TINY)
        residual = maps - normalised
        gate = self.gate(residual.mean(2))[:, :, None]
        return Parts(maps, normalised, normalised + gate * residual, normalised + (1 - gate) * residual)

    def take_parts(self) -> Parts:
        """What the latest pass in training mode gave; once, so that its graph is not kept."""
        assert self._parts is not None
        parts, self._parts = self._parts, None
        return parts


def restore_stages(network: Network, reduction: int) -> list[RestoredStage]:
    """Put a `RestoredStage` in the place of every stage of a network."""
    if not network.stages:
        raise UserError("FAR works on the stages of a backbone, and this one names none: choose for example a ResNet")
    restored = []
    for name, path in network.stages.items():
        stage = network.body.get_submodule(path)
        norms = [module for module in stage.modules() if isinstance(module, nn.BatchNorm2d)]
        if not norms:
            raise UserError(
                f"FAR normalises convolutional maps, and {name} of this backbone has no BatchNorm2d: "
                "choose one that has, such as a ResNet"
            )
        restored.append(RestoredStage(stage, norms[-1].num_features, reduction))
        network.body.set_submodule(path, restored[-1])
    return restored
