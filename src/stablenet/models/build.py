"""From a name to a network."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from stablenet.errors import UserError
from stablenet.models import pretrained as weights
from stablenet.models.families import build_own, build_timm, build_torchvision, call_with, import_timm, list_torchvision
from stablenet.models.network import Backbone, Network
from stablenet.models.paper_cnn import build_paper_cnn
from stablenet.registry import Registry

TIMM = "timm/"
BACKBONES: Registry[Callable[..., Backbone]] = Registry("backbone")
BACKBONES.add("paper-cnn", build_paper_cnn)


def build_network(
    name: str,
    num_classes: int,
    *,
    pretrained: str = "",
    parameters: Mapping[str, Any] | None = None,
    taps: Sequence[str] = (),
    adaptation: Mapping[str, Any] | None = None,
    root: Path | None = None,
) -> Network:
    """Backbone by name with a new classifier.

    name: "paper-cnn", a torchvision name ("resnet18"), "timm/<name>", or "package.module:name" of one's own.
    pretrained: "" for random weights, "imagenet" or a named set of weights, or a .safetensors file (also below root).
    adaptation: of a network whose trained weights will be loaded next, as `Network.adaptation` told it.
    Random weights come from torch's global generator, which the caller seeds.
    """
    network = Network(_build_backbone(name, dict(parameters or {}), pretrained), num_classes)
    if adaptation:
        weights.adapt(network, adaptation)
    if pretrained.endswith(".safetensors"):
        weights.load_file(network, find_weights(pretrained, root))
    elif pretrained and not name.startswith(TIMM):
        if name in BACKBONES or ":" in name:
            raise UserError(f"{name} has no published weights: give a .safetensors file, or model.pretrained=''")
        weights.load_named(network, name, pretrained)
    network.tap(taps)
    return network


def check_backbone(name: str, parameters: Mapping[str, Any]) -> None:
    """Refuse an unknown name, or parameters a backbone of ours or torchvision's cannot be built with.

    It is built without memory for its weights. Others are code of any kind and are met when the run builds them.
    """
    if name.startswith(TIMM) or ":" in name:
        return
    _build_on_meta(name, json.dumps(dict(parameters), sort_keys=True))


@cache
def _build_on_meta(name: str, parameters: str) -> None:
    """parameters: as JSON, so that the many runs of a table build a backbone once."""
    with torch.device("meta"):
        _build_backbone(name, json.loads(parameters), "")


def find_weights(path: str, root: Path | None) -> Path:
    """A weights file as named, or below the data folder."""
    places = [Path(path), *([root / path] if root is not None else [])]
    for place in places:
        if place.is_file():
            return place
    raise UserError(f"there are no weights at {' or '.join(map(str, places))}: set model.pretrained to the file")


def list_backbones(pattern: str = "*", timm: bool = False) -> list[str]:
    """Names `build_network` knows, by wildcard; timm's many only when asked for."""
    from fnmatch import fnmatch

    names = [*BACKBONES, *list_torchvision()]
    if timm:
        names += [TIMM + name for name in import_timm().list_models()]
    return [name for name in names if fnmatch(name, pattern)]


def _build_backbone(name: str, parameters: dict[str, Any], pretrained: str) -> Backbone:
    if name in BACKBONES:
        backbone: Backbone = call_with(name, BACKBONES[name], parameters)
        return backbone
    if name.startswith(TIMM):
        if pretrained and not pretrained.endswith(".safetensors"):
            parameters = {**parameters, "pretrained": True}
        return build_timm(name.removeprefix(TIMM), **parameters)
    if ":" in name:
        return build_own(name, **parameters)
    return build_torchvision(name, **parameters)
