"""Weights to start from: by name, or from a local safetensors file whose header may tell how its network differs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
from torch import Tensor, nn

from stablenet.errors import UserError
from stablenet.models.network import Network

IMAGENET = "imagenet"
_CLASSIFIERS = ("fc.", "classifier.", "head.", "heads.")  # as the families name them; ours is new
_FEW = 3


def load_named(network: Network, name: str, weights: str) -> None:
    """torchvision's weights: "imagenet" (the first published ones) or the name of others, "IMAGENET1K_V2"."""
    from torchvision import models

    known = models.get_model_weights(name)
    wanted = "IMAGENET1K_V1" if weights == IMAGENET else weights
    if wanted not in known.__members__:
        raise UserError(
            f"{name} has no weights {wanted!r}: it has {', '.join(known.__members__)}; or give a .safetensors file"
        )
    try:
        state = known[wanted].get_state_dict(progress=False, check_hash=True, weights_only=True)
    except (URLError, OSError) as error:
        raise UserError(
            f"the weights {wanted} of {name} could not be fetched ({error}): fetch them elsewhere, save them as "
            "safetensors and set model.pretrained to that file, or start from random weights with model.pretrained=''"
        ) from error
    load_body(network, state, f"{name}, {wanted}")


def load_file(network: Network, path: Path) -> None:
    """A safetensors file with the body's key names; half precision is widened."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read the weights {path}: {error}") from error
    adapt(network, read_adaptation(header))
    load_body(network, state, str(path))


def read_adaptation(header: Mapping[str, str]) -> dict[str, Any]:
    """What the header says of the network: BatchNorm's eps, and where a bottleneck's stride sits."""
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
