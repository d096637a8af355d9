"""Which network to try with: a pretrained one where its weights can be had, sized for the machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any
from urllib.error import URLError
from urllib.request import Request as WebRequest
from urllib.request import urlopen

import torch
from PIL import Image

from stablenet.data.image_list import ImageList
from stablenet.errors import UserError

SMALL = 48  # pixels: below it there is little for a network pretrained on photographs to see
LOOKED_AT = 50  # images whose sizes are read
PROBE_SECONDS = 5.0
PRETRAINED = {"cuda": "resnet50", "cpu": "resnet18"}
SIDES = {"cuda": 224, "cpu": 112}  # of the images a pretrained network is given
FROM_SCRATCH = 64  # at most, for the small network
HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class NetworkChoice:
    """values: of the config, its tables data, model and train.   why: a sentence.
    least_epochs: with fewer it does not learn.   most_epochs: more gain nothing.
    """

    values: dict[str, Any]
    why: str
    least_epochs: int
    most_epochs: int

    @property
    def image_size(self) -> int:
        return int(self.values["data"]["image_size"])


def choose_network(
    images: ImageList,
    device: str,
    backbone: str = "",
    pretrained: str = "",
    can_fetch: Callable[[str], bool] | None = None,
) -> NetworkChoice:
    """device: cpu or cuda.   backbone, pretrained: what the user named, "" for nothing.
    can_fetch: whether a network's ImageNet weights are at hand or can be had; by default this looks.
    """
    side = typical_side(images)
    if backbone:
        return _take_named(backbone, pretrained, device, side)
    if pretrained:
        raise UserError("--pretrained needs --backbone: name the network the weights belong to, such as resnet50")
    name = PRETRAINED[device]
    if side < SMALL:
        return _take_small(side, f"the images are small ({side} pixels)")
    if (can_fetch or has_weights)(name):
        return _take_pretrained(name, "imagenet", device, f"{name} with ImageNet weights")
    reason = (
        "no pretrained weights are at hand and none could be fetched; --backbone resnet50 --pretrained FILE takes yours"
    )
    return _take_small(side, reason)


def typical_side(images: ImageList) -> int:
    """The median of the shorter sides of some images, in pixels."""
    step = max(1, len(images.rows) // LOOKED_AT)
    sizes = []
    for path in images.rows["path"].tolist()[::step][:LOOKED_AT]:
        try:
            with Image.open(BytesIO(images.open_bytes(path))) as image:
                sizes.append(min(image.size))
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise UserError(f"the image {path} cannot be read ({error}): mend it or leave it out") from error
    return int(median(sizes))


def has_weights(name: str) -> bool:
    """Whether torchvision's ImageNet weights lie in torch's cache, or answer on the network."""
    from torchvision import models

    url: str = models.get_model_weights(name)["IMAGENET1K_V1"].url
    if (Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]).is_file():
        return True
    try:
        with urlopen(WebRequest(url, method="HEAD"), timeout=PROBE_SECONDS):
            return True
    except (URLError, OSError):
        return False


def _take_named(name: str, pretrained: str, device: str, side: int) -> NetworkChoice:
    if pretrained:
        own = Path(pretrained)
        pretrained = str(own.absolute()) if own.is_file() else pretrained
        return _take_pretrained(name, pretrained, device, f"{name} with the weights {pretrained}")
    if name == "paper-cnn":
        return _take_small(side, "you named it")
    chosen = _take_pretrained(name, "", device, f"{name} from random weights, as you named no --pretrained")
    chosen.values["train"] |= {"learning_rate": 0.01}
    del chosen.values["model"]["statistics"]
    return NetworkChoice(chosen.values, chosen.why, 15, 30)


def _take_pretrained(name: str, weights: str, device: str, why: str) -> NetworkChoice:
    """Fine-tuned as the natural beds of the results are: statistics kept, a small rate, few epochs."""
    values = {
        "data": {"image_size": SIDES[device], "augment": device == "cuda"},
        "model": {"name": name, "pretrained": weights, "statistics": "frozen"},
        "train": {"learning_rate": 0.002, "schedule": "cosine", "weight_decay": 1e-4, "batch_size": 32},
    }
    return NetworkChoice(values, f"{why}, images of {SIDES[device]} pixels", 3, 8)


def _take_small(side: int, reason: str) -> NetworkChoice:
    """The paper's CNN, with the schedule of the bundled digits."""
    size = max(28, min(side, FROM_SCRATCH))
    values = {
        "data": {"image_size": size, "mean": list(HALF), "std": list(HALF)},
        "model": {"name": "paper-cnn", "parameters": {"image_size": size}},
        "train": {"learning_rate": 0.02, "schedule": "cosine", "weight_decay": 1e-3, "batch_size": 64},
    }
    return NetworkChoice(values, f"a small network from random weights, images of {size} pixels: {reason}", 15, 40)
