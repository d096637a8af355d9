"""The model in one piece: preprocessing and normalization inside; in the layout of the Hub; and loaded again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from stablenet.algorithms import Context, build_predictor
from stablenet.data.augment import Normalization, Resize
from stablenet.data.decode import convert_image
from stablenet.engine.checkpoint import load_tensors, name_misfit
from stablenet.engine.run import Run, load_run
from stablenet.engine.run_folder import RunFolder
from stablenet.errors import UserError
from stablenet.evaluation.evaluate import DEFAULT_RULE, load_chosen
from stablenet.evaluation.predict import read_pixels
from stablenet.models import Network
from stablenet.models.build import TIMM
from stablenet.models.families import import_timm
from stablenet.values import read_fields


class PackagedModel(nn.Module):
    """Images (b, 3, s, s) in 0..1 to logits and probabilities, each (b, classes).

    settings: its description, as returned by `describe_model`.
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
    assert isinstance(run.transform, Resize), "the card says how images are resized"
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


CONFIG = "config.json"
_BODY, _HEAD = "body.", "head."  # of the names in a `Network`
_OF_THE_BODY = ("first_conv", "pool_size", "fixed_input_size")  # what timm's config of the backbone says of it
_TORCHVISION = ("ResNet", "conv1", "fc")  # its class, first layer and classifier: timm has it under the same names


def describe_for_hub(model: PackagedModel) -> dict[str, Any]:
    """The contents of config.json."""
    settings, classes = model.settings, len(model.classes)
    side = model.image_size
    described = {
        "architecture": settings["backbone"].removeprefix(TIMM),
        "num_classes": classes,
        "num_features": model.network.width,
        "label_names": list(model.classes),
        "pretrained_cfg": {
            "custom_load": False,
            "input_size": [3, side, side],
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "crop_mode": "squash",
            "mean": settings["mean"],
            "std": settings["std"],
            "num_classes": classes,
            "classifier": find_classifier(model) or "head",
            **_describe_body(model.network.body),
        },
    }
    return described | ({"model_args": settings["parameters"]} if settings["parameters"] else {})


def find_classifier(model: PackagedModel) -> str:
    """timm's name of the classifier; "" if timm does not have this very network."""
    settings, body = model.settings, model.network.body
    if settings["adaptation"]:
        return ""
    if settings["backbone"].startswith(TIMM):
        name = body.pretrained_cfg.get("classifier")  # type: ignore[union-attr,operator]
        return name if isinstance(name, str) and _is_timms(model, name) else ""
    kind, _, classifier = _TORCHVISION
    of_torchvision = type(body).__module__.startswith("torchvision.") and type(body).__name__ == kind
    return classifier if of_torchvision and not settings["parameters"] else ""


def _is_timms(model: PackagedModel, classifier: str) -> bool:
    """Whether timm's network with as many classes has the same weights by name and shape."""
    settings = model.settings
    with torch.device("meta"):
        theirs = import_timm().create_model(
            settings["backbone"].removeprefix(TIMM), num_classes=len(model.classes), **settings["parameters"]
        )
    ours = rename_weights(model.network.state_dict(), classifier)
    return {name: tensor.shape for name, tensor in ours.items()} == {
        name: tensor.shape for name, tensor in theirs.state_dict().items()
    }


def _describe_body(body: nn.Module) -> dict[str, Any]:
    known = getattr(body, "pretrained_cfg", None)
    if isinstance(known, Mapping):
        return {name: known[name] for name in _OF_THE_BODY if name in known}
    return {"first_conv": _TORCHVISION[1]} if type(body).__name__ == _TORCHVISION[0] else {}


def rename_weights(weights: Mapping[str, Tensor], classifier: str) -> dict[str, Tensor]:
    """A network's weights under timm's names.   classifier: its name, "" for the network's own names."""
    if not classifier:
        return dict(weights)
    return {_rename(name, _HEAD, f"{classifier}.", _BODY, ""): tensor for name, tensor in weights.items()}


def restore_names(weights: Mapping[str, Tensor], classifier: str) -> dict[str, Tensor]:
    """The inverse of `rename_weights`."""
    if not classifier:
        return dict(weights)
    return {_rename(name, f"{classifier}.", _HEAD, "", _BODY): tensor for name, tensor in weights.items()}


def _rename(name: str, head: str, new_head: str, body: str, new_body: str) -> str:
    if name.startswith(head):
        return new_head + name.removeprefix(head)
    return new_body + name.removeprefix(body)


WEIGHTS = "model.safetensors"  # of an exported folder
SETTINGS, CLASSIFIER = "model", "classifier"  # in the file's header: the model's settings, and how its head is called


def load_model(path: Path | str, rule: str | None = None) -> PackagedModel:
    """A trained model, ready for images, in eval mode on the CPU.

    path: a run folder, an exported folder, or its file model.safetensors.
    rule: which model of a run folder, by default the one with the best source validation; an exported folder has one.
    """
    place = Path(path)
    file = place / WEIGHTS if place.is_dir() else place
    if file.is_file():
        if rule is not None:
            raise UserError(f"{place} is an exported model, chosen when it was exported: leave the rule {rule!r} out")
        return _load_exported(file)
    if not RunFolder(place).config.exists():
        raise UserError(
            f"there is no model in {place}: give a run folder, or one with a {WEIGHTS} that `stablenet export` wrote"
        )
    run = load_run(place)
    network, _ = load_chosen(run, rule or DEFAULT_RULE)
    return PackagedModel(network, describe_model(run, network)).eval()


def _load_exported(file: Path) -> PackagedModel:
    """The one file holds all that is needed."""
    tensors, meta = load_tensors(file)
    settings: dict[str, Any] | None = meta.get(SETTINGS)
    if settings is None:
        raise UserError(f"{file} is not an exported model: make one with `stablenet export RUN --format safetensors`")
    with name_misfit(file):
        network = build_predictor(
            settings["backbone"],
            settings["parameters"],
            settings["adaptation"],
            settings["method"],
            settings["method_parameters"],
            read_fields(Context, settings["context"], "context"),
        )
        network.load_state_dict(restore_names(tensors, meta.get(CLASSIFIER, "")))
    return PackagedModel(network, settings).eval()
