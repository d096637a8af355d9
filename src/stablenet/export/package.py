"""The exported model: normalization inside, so that nobody can forget it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stablenet.algorithms import Context, build_predictor
from stablenet.data.augment import Resize
from stablenet.engine.checkpoint import load_tensors
from stablenet.engine.run import Run
from stablenet.errors import UserError
from stablenet.models import Network
from stablenet.values import read_fields

SETTINGS = "model"  # the key of the model's settings in a safetensors file


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

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        logits: Tensor = self.network((images - self.mean) / self.std)
        return logits, logits.softmax(1)


def describe_model(run: Run, network: Network) -> dict[str, Any]:
    """Everything that is needed to build the network again and to feed it: plain values."""
    data, model = run.config.data, run.config.model
    transform = run.transform
    assert isinstance(transform, Resize), "the card tells how images are resized"
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


def load_model(path: Path | str) -> PackagedModel:
    """An exported model.safetensors, ready to use, in eval mode; the one file holds all that is needed."""
    tensors, meta = load_tensors(Path(path))
    settings = meta.get(SETTINGS)
    if settings is None:
        raise UserError(f"{path} is no exported model: make one with `stablenet export RUN --format safetensors`")
    context = read_fields(Context, settings["context"], "context")
    network = build_predictor(
        settings["backbone"],
        settings["parameters"],
        settings["adaptation"],
        settings["method"],
        settings["method_parameters"],
        context,
    )
    network.load_state_dict(tensors)
    return PackagedModel(network, settings).eval()
