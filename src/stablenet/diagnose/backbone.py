"""Shallow features of a pretrained network: its first two stages, pooled as the preset `recommended` pools them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stablenet.diagnose.bank import pool, pool_border
from stablenet.errors import UserError
from stablenet.models import build_network
from stablenet.weighting.recommended import TAPS

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # what published ImageNet weights were trained with


class _Enough(Exception):
    """Ends a forward pass."""


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
            raise UserError(f"the backbone {name} names no {missing[0]}: choose one with stages, such as resnet50")
        self._body = network.body
        self._maps: list[Tensor] = []
        modules = dict(network.body.named_modules())
        modules[network.stages[TAPS[0]]].register_forward_hook(self._keep)
        modules[network.stages[TAPS[1]]].register_forward_hook(self._stop)
        self.description = f"{name} with the weights {Path(pretrained).name}: pooled maps of its first two stages"

    @torch.no_grad()
    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """pixels: (b, s, s, 3) uint8.   Returns features of the whole image and of its border, (b, m) each."""
        images = pixels.permute(0, 3, 1, 2).float() / 255
        self._maps.clear()
        with contextlib.suppress(_Enough):
            self._body((images - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None])
        return torch.cat([pool(m) for m in self._maps], 1), torch.cat([pool_border(m) for m in self._maps], 1)

    def _keep(self, module: nn.Module, args: Any, output: Tensor) -> None:
        if output.ndim != 4:
            raise UserError("this backbone's stages are no maps of positions: choose a convolutional one")
        # A copy: the layer that follows may change the output in place.
        self._maps.append(output.clone())

    def _stop(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self._keep(module, args, output)
        raise _Enough
