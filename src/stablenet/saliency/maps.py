"""Smoothed gradients (Smilkov et al., SmoothGrad: removing noise by adding noise, 2017) through captum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stablenet.errors import UserError


@dataclass(frozen=True, kw_only=True)
class SaliencySettings:
    """samples: noisy copies of every image.   noise: their deviation, as a share of the image's range of values.
    seed: of the noise; two calls with the same settings give the same maps.
    """

    samples: int = 50  # SmoothGrad's authors see little change beyond 50
    noise: float = 0.15  # they recommend 0.1 to 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise UserError(f"saliency needs at least one noisy copy of an image, got {self.samples}")
        if not 0 <= self.noise <= 1:
            raise UserError(f"the noise must be a share of the image's range, 0 to 1, got {self.noise}")


def smooth_gradients(model: nn.Module, images: Tensor, target: Tensor, settings: SaliencySettings) -> Tensor:
    """Mean gradient of a class's score with respect to noisy copies of the image, largest size over the channels.

    model: images (b, 3, s, s) -> logits (b, classes).   images: (n, 3, s, s) on the model's device.
    target: (n,) the class whose score is looked at.   Returns (n, s, s), non-negative.
    """
    from captum.attr import NoiseTunnel, Saliency

    tunnel: Any = NoiseTunnel(Saliency(model))
    maps = []
    for image, label in zip(images, target.tolist(), strict=True):
        spread = settings.noise * float(image.max() - image.min())
        copies = {"nt_type": "smoothgrad", "nt_samples": settings.samples, "stdevs": spread}
        with torch.random.fork_rng([image.device] if image.is_cuda else []):
            torch.manual_seed(settings.seed)  # captum draws from torch's global generator
            gradient = tunnel.attribute(image[None].clone().requires_grad_(), **copies, target=label, abs=False)
        maps.append(gradient[0].detach().abs().amax(0))
    return torch.stack(maps)
