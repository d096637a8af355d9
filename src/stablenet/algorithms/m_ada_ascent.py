"""Harder images by gradient ascent: away from the data as an autoencoder sees it, near it as the network does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from stablenet.algorithms.autoencoder import WassersteinAutoencoder

Look = Callable[[Tensor], tuple[Tensor, Tensor]]  # images in [0, 1] -> features (b, width), logits (b, classes)
BATCH, SIDE = 32, 32  # the published rate is that of a mean over 32 images of 32 pixels


@dataclass(frozen=True, kw_only=True)
class Ascent:
    """steps, rate: of the ascent; the rate as published, for a mean over a batch of 32 images of 32 × 32 pixels.
    relaxation: weight of the reconstructions' distance.   constraint: weight of the features' distance.
    copy_size: side of the copy that the autoencoder sees.
    """

    steps: int
    rate: float
    relaxation: float
    constraint: float
    copy_size: int


def shrink(images: Tensor, side: int) -> Tensor:
    """Images (b, 3, s, s) averaged, or repeated, to side × side pixels and flattened: (b, 3·side²)."""
    return functional.adaptive_avg_pool2d(images, side).flatten(1)


def ascend(images: Tensor, labels: Tensor, look: Look, autoencoder: WassersteinAutoencoder, ascent: Ascent) -> Tensor:
    r"""Move every image along the gradient of CE + relaxation·MSE(V(x⁺), V(x)) − constraint·MSE(f(x⁺), f(x)).

    images: x, (b, 3, s, s) in [0, 1], and there may be steps beyond it.   labels: (b,).
    look: f and its classifier.   autoencoder: V.   Returns x⁺, (b, 3, s, s).
    Each image moves for itself, whatever batch it comes in. The rate grows with the number of pixels, because the
    gradient of one pixel falls with it: otherwise images of 224 pixels would hardly move.
    """
    with torch.no_grad():
        features, _ = look(images)
        reconstructions = autoencoder(shrink(images, ascent.copy_size))
    rate = ascent.rate / BATCH * images.shape[-2] * images.shape[-1] / SIDE**2
    moved = images.clone()
    for _ in range(ascent.steps):
        moved.requires_grad_()
        seen, logits = look(moved)
        far = _distance(autoencoder(shrink(moved, ascent.copy_size)), reconstructions)
        near = _distance(seen, features)
        objective = functional.cross_entropy(logits, labels, reduction="none")
        objective = objective + ascent.relaxation * far - ascent.constraint * near
        (gradient,) = torch.autograd.grad(objective.sum(), moved)
        moved = (moved + rate * gradient).detach()
    return moved


def _distance(one: Tensor, other: Tensor) -> Tensor:
    """Mean squared difference of every row: (b, m), (b, m) -> (b,)."""
    return (one - other).square().mean(1)
