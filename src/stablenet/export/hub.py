"""The layout of the Hugging Face Hub: config.json beside the weights, which have timm's names where timm has the
network, so that `timm.create_model("local-dir:FOLDER", pretrained=True)` reads the folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stablenet.export.package import PackagedModel
from stablenet.models.build import TIMM
from stablenet.models.families import import_timm

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
