"""Smoothed gradients (Smilkov et al., SmoothGrad, 2017) through captum, and whether they can be trusted.

A map that stays the same when the parameters are drawn anew shows the picture's edges, not the network (Adebayo et al.,
Sanity checks for saliency maps, NeurIPS 2018). Where the object's pixels are known (a digit's ink, mask files), the
share of a map that lies on them is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from stablenet.data.image_list import ComposedList, CutoutList, find_masks
from stablenet.data.manifest import Manifest
from stablenet.data.sources import AnyImageList
from stablenet.errors import UserError
from stablenet.files import read_bytes
from stablenet.values import Count, Seed, Share, check_fields


@dataclass(frozen=True, kw_only=True)
class SaliencySettings:
    """samples: noisy copies of every image.   noise: their deviation, as a share of the image's range of values.
    seed: of the noise; two calls with the same settings give the same maps.
    """

    samples: Count = 50  # SmoothGrad's authors see little change beyond 50
    noise: Share = 0.15  # they recommend 0.1 to 0.2
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self)


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


Model = TypeVar("Model", bound=nn.Module)
MapMaker = Callable[[nn.Module, int], Tensor]  # a network and a seed for the noise -> maps (n, s, s)


@dataclass(frozen=True)
class Sanity:
    """Mean rank correlations over the images whose maps are not zero everywhere; None where all are.

    repeated: of two maps of the same network with other noise, what agreement can be expected at best.
    randomised: of the network's map with that of the same network with random parameters.
    """

    repeated: float | None
    randomised: float | None

    @property
    def passed(self) -> bool:
        """The maps lose at least half of their agreement with the parameters."""
        if self.repeated is None or self.randomised is None:
            return False
        return self.randomised <= self.repeated / 2


def check_maps(model: nn.Module, maps: Tensor, make_maps: MapMaker, seed: int = 0) -> Sanity:
    """Compare the maps (n, s, s) of a network with those of other noise and of random parameters."""
    return Sanity(
        repeated=_mean(rank_correlation(maps, make_maps(model, seed + 1))),
        randomised=_mean(rank_correlation(maps, make_maps(randomise_parameters(model, seed), seed))),
    )


def randomise_parameters(model: Model, seed: int) -> Model:
    """A copy with weights drawn anew, of mean zero and the same size; vectors (biases, norms) are shuffled.

    Shuffled weights would do for most networks, but where their mean is far below zero no unit stays on.
    """
    generator = torch.Generator().manual_seed(seed)
    copy = deepcopy(model)
    with torch.no_grad():
        for parameter in copy.parameters():
            if parameter.ndim > 1:
                drawn = torch.randn(parameter.shape, generator=generator).to(parameter)
                parameter.copy_(drawn * parameter.square().mean().sqrt())
            else:
                order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
                parameter.copy_(parameter.flatten()[order].view_as(parameter))
    return copy


def rank_correlation(first: Tensor, second: Tensor) -> Tensor:
    """Spearman's of every pair of maps (n, s, s): (n,), −1 to 1, NaN where a map has one value only."""
    ranks = [_rank(maps.flatten(1).double()) for maps in (first, second)]
    a, b = (rank - rank.mean(1, keepdim=True) for rank in ranks)
    return (a * b).sum(1) / (a.square().sum(1) * b.square().sum(1)).sqrt()


def _rank(values: Tensor) -> Tensor:
    """Places (n, p) in rising order; equal values share the mean of theirs, as black borders do."""
    ranks = []
    for row in values:
        _, inverse, counts = row.unique(return_inverse=True, return_counts=True)
        last = counts.cumsum(0).double()
        ranks.append((last - (counts.double() - 1) / 2)[inverse])
    return torch.stack(ranks)


def _mean(values: Tensor) -> float | None:
    known = values[~values.isnan()]
    return float(known.mean()) if len(known) else None


INK = 64  # of 255: fainter ink is smoothing at the border of a stroke


def share_on_object(maps: Tensor, masks: Tensor) -> Tensor:
    """Share of every map's saliency on its object.   maps: (n, s, s).   masks: (n, s, s) bool.   Returns (n,).

    NaN where a map is zero everywhere: no unit of the network is active there. Compare a share with the object's share
    of the area, `masks.float().mean((1, 2))`, which a flat map has.
    """
    return (maps * masks).sum((1, 2)) / maps.sum((1, 2))


def find_known_masks(
    table: AnyImageList, manifest: Manifest, part: str, ids: Sequence[str], side: int
) -> Tensor | None:
    """(n, side, side) bool, the foregrounds of composed images; None where a source's table has no masks."""
    if isinstance(table, CutoutList):
        return resize_masks(torch.from_numpy(find_masks(table, manifest, part, ids)), side)
    if not isinstance(table, ComposedList):
        return None
    numbers = {name: number for number, name in enumerate(table.rows["id"])}
    ink = torch.from_numpy(table.read_digits()[[numbers[name] for name in ids]]) >= INK
    return resize_masks(ink, side)


def read_mask_files(folder: Path, paths: Sequence[Path], side: int) -> Tensor:
    """(n, s, s) bool from image files of the same names, anything but black being the object."""
    from PIL import Image

    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give the folder with one mask per image, of the same name, as PNG")
    masks = []
    for path in paths:
        file = folder / f"{path.stem}.png"
        if not file.is_file():
            raise UserError(f"the image {path} has no mask {file}: every image needs one, white on black")
        try:
            grey = np.array(Image.open(BytesIO(read_bytes(file))).convert("L"))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise UserError(f"the mask {file} cannot be read as an image ({error}): make it again, as PNG") from error
        masks.append(resize_masks(torch.from_numpy(grey)[None] > 0, side)[0])
    return torch.stack(masks)


def resize_masks(masks: Tensor, side: int) -> Tensor:
    """(n, H, W) bool to (n, side, side) by the nearest pixel."""
    return functional.interpolate(masks[:, None].float(), size=(side, side), mode="nearest")[:, 0] > 0.5
