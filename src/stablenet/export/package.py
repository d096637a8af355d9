"""The model in one piece: preprocessing and normalization inside, so that nobody can forget them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from stablenet.data.augment import Normalization, Resize
from stablenet.data.decode import convert_image
from stablenet.engine.run import Run
from stablenet.evaluation.predict import read_pixels
from stablenet.models import Network


class PackagedModel(nn.Module):
    """Images (b, 3, s, s) in 0..1 to logits and probabilities, each (b, classes).

    settings: what has to be known of it, as `describe_model` gives it.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: Network, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.network = network
        self.settings = dict(settings)
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(settings[name]).view(1, 3, 1, 1), persistent=False)

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.settings["classes"])

    @property
    def image_size(self) -> int:
        return int(self.settings["image_size"])

    @property
    def store_size(self) -> int | None:
        """The side to which images were resized before training, None if they kept their size."""
        side = self.settings["store_size"]
        return None if side is None else int(side)

    @property
    def transform(self) -> Resize:
        """Pixels (b, H, W, 3) uint8 to what `network` takes, normalized; `preprocess` and `forward` do it in two."""
        return Resize(self.image_size, Normalization(tuple(self.settings["mean"]), tuple(self.settings["std"])))

    def preprocess(self, image: Any) -> Tensor:
        """An image as `forward` takes it, (3, s, s) in 0..1.   image: a file, a PIL image, or (H, W, 3) uint8."""
        pixels = read_pixels(Path(image), self.store_size) if isinstance(image, str | Path) else self._convert(image)
        resize = Resize(self.image_size, Normalization((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)))
        return resize(pixels[None], torch.zeros(1, dtype=torch.int64))[0]

    def _convert(self, image: Any) -> Tensor:
        side = self.store_size
        opened = image if isinstance(image, Image.Image) else Image.fromarray(np.asarray(image))
        return torch.tensor(convert_image(opened, None if side is None else (side, side)))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        logits: Tensor = self.network((images - self.mean) / self.std)
        return logits, logits.softmax(1)


def describe_model(run: Run, network: Network) -> dict[str, Any]:
    """Everything that is needed to build the network again and to feed it: plain values."""
    data, model = run.config.data, run.config.model
    assert isinstance(run.transform, Resize), "the card tells how images are resized"
    return {
        "backbone": model.name,
        "parameters": run.config.network_parameters,
        "adaptation": network.adaptation,
        "method": run.config.method.name,
        "method_parameters": run.config.method.parameters,
        "context": asdict(run.context),
        "classes": list(run.classes),
        "image_size": data.image_size,
        "store_size": run.stored_side,
        "mean": list(data.mean),
        "std": list(data.std),
    }
