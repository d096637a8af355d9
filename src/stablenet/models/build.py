"""Builds a network from a name; its initial weights come by name, or from a local file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
from torch import Tensor, nn

from stablenet.errors import UserError
from stablenet.files import check_file, hash_file
from stablenet.models.families import (
    build_own,
    build_paper_cnn,
    build_timm,
    build_torchvision,
    call_with,
    import_timm,
    list_torchvision,
)
from stablenet.models.network import Backbone, Network
from stablenet.registry import Registry, unknown_name

IMAGENET = "imagenet"
_CLASSIFIERS = ("fc.", "classifier.", "head.", "heads.")  # as the families name them; ours is new
_FEW = 3
FILES = (".safetensors", ".pth", ".pt")
SHOWN_DIGITS = 16  # of a hash in messages
_HASHED_NAME = re.compile(r"-([0-9a-f]{8,})\.pth$")


def load_named(network: Network, name: str, weights: str) -> None:
    """torchvision's weights: "imagenet" (the first published ones) or the name of others, "IMAGENET1K_V2"."""
    from torchvision import models

    known = models.get_model_weights(name)
    wanted = "IMAGENET1K_V1" if weights == IMAGENET else weights
    if wanted not in known.__members__:
        raise UserError(
            f"{name} has no weights {wanted!r}: it has {', '.join(known.__members__)}; or give a file, .safetensors or "
            ".pth"
        )
    try:
        state = known[wanted].get_state_dict(progress=False, check_hash=True, weights_only=True)
    except (URLError, OSError) as error:
        url = known[wanted].url
        kept = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
        raise UserError(
            f"the weights {wanted} of {name} could not be downloaded ({error}): download {url} elsewhere and put it at "
            f"{kept}, or set model.pretrained to the file (.pth as it is, or .safetensors with the same keys), or "
            "start from random weights with model.pretrained=''"
        ) from error
    load_body(network, state, f"{name}, {wanted}")


def load_file(network: Network, path: Path) -> None:
    """A file of weights with the body's key names; half precision is widened.

    A .safetensors file, or a state dict as torchvision publishes it, of which only tensors are read. If the name of
    such a file ends in part of its hash, as torchvision's do, the hash has to match.
    """
    state, header = _read_safetensors(path) if path.suffix == ".safetensors" else (_read_state_dict(path), {})
    adapt(network, read_adaptation(header))
    load_body(network, state, f"{path} (SHA-256 {hash_file(path)[:SHOWN_DIGITS]}…)")


def _read_state_dict(path: Path) -> dict[str, Tensor]:
    promised = _HASHED_NAME.search(path.name)
    found = hash_file(path)
    if promised and not found.startswith(promised[1]):
        raise UserError(
            f"the weights {path} are not what their name says: the SHA-256 begins with {found[: len(promised[1])]}, "
            f"expected {promised[1]}; download the file again"
        )
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling of a wrong file may raise anything
        # Not torch's own words, which advise to read it all the same.
        raise UserError(
            f"cannot read the weights {path}: it is damaged, or holds more than tensors, and nothing else is read from "
            "such a file; expected a state dict as torchvision publishes it, or .safetensors"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(
            f"the weights {path} hold no state dict: expected tensors by name, as torchvision publishes them"
        )
    return state


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors, and the header."""
    from safetensors import SafetensorError, safe_open

    check_file(path)
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read the weights {path}: {error}") from error
    return state, header


def read_adaptation(header: Mapping[str, str]) -> dict[str, Any]:
    """What the header says about the network: BatchNorm's eps, and which convolution of a bottleneck has the stride."""
    adaptation: dict[str, Any] = {}
    if "bn_eps" in header:
        adaptation["bn_eps"] = float(header["bn_eps"])
    if "stride 2 in the 1x1" in header.get("architecture", ""):
        adaptation["stride_in_1x1"] = True
    return adaptation


def adapt(network: Network, adaptation: Mapping[str, Any]) -> None:
    """Change the body to what its weights were trained with.

    bn_eps: of every BatchNorm.   stride_in_1x1: the stride of a bottleneck in its conv1, not in its conv2.
    """
    if "bn_eps" in adaptation:
        for module in network.body.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eps = adaptation["bn_eps"]
    if adaptation.get("stride_in_1x1"):
        _move_strides(network.body)
    network.adaptation = dict(adaptation)


def _move_strides(body: nn.Module) -> None:
    blocks = [module for module in body.modules() if type(module).__name__ == "Bottleneck"]
    if not blocks:
        raise UserError("the weights have their stride in the 1×1 convolution, but this backbone has no bottlenecks")
    for block in blocks:
        first, second = block.conv1, block.conv2
        assert isinstance(first, nn.Conv2d)
        assert isinstance(second, nn.Conv2d)
        if second.stride != (1, 1):
            first.stride, second.stride = second.stride, (1, 1)


def load_body(network: Network, state: Mapping[str, Tensor], what: str) -> None:
    """Copy weights into the body; a classifier among them is left out, anything else must fit."""
    own = network.body.state_dict()
    given = {k: v.to(torch.float32) if v.is_floating_point() else v for k, v in state.items()}
    given = {k: v for k, v in given.items() if k in own or not k.startswith(_CLASSIFIERS)}
    missing = [key for key in own if key not in given and not key.endswith("num_batches_tracked")]
    strange = [key for key in given if key not in own]
    unlike = [key for key in given if key in own and given[key].shape != own[key].shape]
    for problem, keys in (("lack", missing), ("have the unknown", strange), ("have other shapes for", unlike)):
        if keys:
            few = ", ".join(keys[:_FEW]) + (f" and {len(keys) - _FEW} more" if len(keys) > _FEW else "")
            raise UserError(f"the weights {what} do not fit the backbone: they {problem} {few}")
    network.body.load_state_dict(given, strict=False)


TIMM = "timm/"
HEADS = ("default", "xavier-0.1")
BACKBONES: Registry[Callable[..., Backbone]] = Registry("backbone")
BACKBONES.add("paper-cnn", build_paper_cnn)


def build_network(
    name: str,
    num_classes: int,
    *,
    pretrained: str = "",
    head: str = "default",
    parameters: Mapping[str, Any] | None = None,
    taps: Sequence[str] = (),
    adaptation: Mapping[str, Any] | None = None,
    root: Path | None = None,
) -> Network:
    """Backbone by name with a new classifier.

    name: "paper-cnn", a torchvision name ("resnet18"), "timm/<name>", or your own "package.module:name".
    pretrained: "" for random weights, "imagenet" or a named set of weights, or a file (also below root): .safetensors,
        or .pth as torchvision publishes.
    head: how the classifier is initialised: as torch does, or by Xavier with gain 0.1 and no bias, as in the authors'
        published code.
    adaptation: of a network whose trained weights will be loaded next, from its `Network.adaptation`.
    Random weights come from torch's global generator, which the caller seeds.
    """
    network = Network(_build_backbone(name, dict(parameters or {}), pretrained), num_classes)
    start_head(network.head, head)
    if adaptation:
        adapt(network, adaptation)
    if is_file(pretrained):
        load_file(network, find_weights(pretrained, root))
    elif pretrained and not name.startswith(TIMM):
        if name in BACKBONES or ":" in name:
            raise UserError(
                f"{name} has no published weights: give a .safetensors or .pth file, or model.pretrained=''"
            )
        load_named(network, name, pretrained)
    network.tap(taps)
    return network


def start_head(head: nn.Linear, how: str) -> None:
    """Initial values of the classifier, see `build_network`."""
    if how not in HEADS:
        raise UserError(unknown_name("start of the classifier", how, HEADS))
    if how == "xavier-0.1":
        nn.init.xavier_uniform_(head.weight, 0.1)
        nn.init.zeros_(head.bias)


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


def is_file(pretrained: str) -> bool:
    """Whether `model.pretrained` names a file, not a published set of weights."""
    return pretrained.endswith(FILES)


def find_weights(path: str, root: Path | None) -> Path:
    """A weights file as named, or below the data folder."""
    places = [Path(path), *([root / path] if root is not None else [])]
    for place in places:
        if place.is_file():
            return place
    raise UserError(f"there are no weights at {' or '.join(map(str, places))}: set model.pretrained to the file")


def list_backbones(pattern: str = "*", timm: bool = False) -> list[str]:
    """Names that `build_network` accepts, by wildcard; timm's only on request."""
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
        return build_timm(name.removeprefix(TIMM), bool(pretrained) and not is_file(pretrained), **parameters)
    if ":" in name:
        return build_own(name, **parameters)
    return build_torchvision(name, **parameters)
