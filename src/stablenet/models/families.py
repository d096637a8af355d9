"""Backbones: torchvision's, timm's, the paper's CNN for MNIST-M and the user's own, each with named stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from stablenet.errors import UserError
from stablenet.models.network import Backbone
from stablenet.registry import import_extra, import_own, running_own, unknown_name
from stablenet.values import Between, Share, read_fields, require

WIDTH = 16
DROPOUT = 0.4
LARGEST_SIDE = 4096  # its last layer then has 10⁹ weights


def _convolve(inputs: int, outputs: int, kernel: int, stride: int) -> list[nn.Module]:
    # The paper gives no padding: half the kernel, so that only the stride makes maps smaller.
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]


class PaperCNN(nn.Module):
    """Four convolutions and a layer of 16: images (B, 3, s, s) -> features (B, 16)."""

    def __init__(self, image_size: int = 28, dropout: float = DROPOUT) -> None:
        super().__init__()
        side = (image_size + 3) // 4  # two strides of 2, each rounding up
        self.stage1 = nn.Sequential(*_convolve(3, 32, 7, 1), *_convolve(32, 32, 5, 2))
        self.dropout1 = nn.Dropout(dropout)
        self.stage2 = nn.Sequential(*_convolve(32, 64, 3, 1), *_convolve(64, 64, 3, 2))
        self.dropout2 = nn.Dropout(dropout)
        self.fc = nn.Sequential(nn.Flatten(), nn.Linear(64 * side * side, WIDTH), nn.ReLU(inplace=True))

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_tail(self.forward_maps(images))

    def forward_maps(self, images: Tensor) -> Tensor:
        """Images (B, 3, s, s) -> the last maps (B, 64, s/4, s/4)."""
        maps: Tensor = self.stage2(self.dropout1(self.stage1(images)))
        return maps

    def forward_tail(self, maps: Tensor) -> Tensor:
        """The last maps -> features (B, 16)."""
        features: Tensor = self.fc(self.dropout2(maps))
        return features


@dataclass(frozen=True, kw_only=True)
class PaperCNNSettings:
    """image_size: side of the images it is to see.   dropout: after either stage."""

    image_size: Annotated[int, Between(4, LARGEST_SIDE)] = 28
    dropout: Share = DROPOUT


def build_paper_cnn(**parameters: Any) -> Backbone:
    chosen = read_fields(PaperCNNSettings, parameters, "model.parameters")
    return Backbone(PaperCNN(chosen.image_size, chosen.dropout), WIDTH, {"stage1": "stage1", "stage2": "stage2"})


# Class of the network -> paths of its four stages. Other networks are tapped by their modules' own paths.
_STAGES = {
    "ResNet": ("layer1", "layer2", "layer3", "layer4"),
    "DenseNet": tuple(f"features.denseblock{k}" for k in (1, 2, 3, 4)),
    "ConvNeXt": ("features.1", "features.3", "features.5", "features.7"),
    "SwinTransformer": ("features.1", "features.3", "features.5", "features.7"),
    "EfficientNet": ("features.2", "features.3", "features.5", "features.7"),
    "RegNet": tuple(f"trunk_output.block{k}" for k in (1, 2, 3, 4)),
    "MaxVit": tuple(f"blocks.{k}" for k in range(4)),
    "AlexNet": ("features.2", "features.5", "features.12"),  # its poolings, as VGG's
    "MobileNetV2": ("features.3", "features.6", "features.13", "features.17"),  # the last block of each resolution
    "MNASNet": ("layers.8", "layers.9", "layers.11", "layers.13"),
    "ShuffleNetV2": ("maxpool", "stage2", "stage3", "stage4"),
}
_MOBILENET_V3 = {17: (3, 6, 12, 15), 13: (1, 3, 8, 11)}  # by the number of its layers: large, small
_CHANNELS_LAST = ("SwinTransformer",)  # in torchvision and in timm
_AUXILIARY = ("googlenet", "inception_v3")
_QUARTERS = 4


def build_torchvision(name: str, **parameters: Any) -> Backbone:
    """A torchvision classifier by its name, with random weights."""
    from torchvision import models

    if name not in list_torchvision():
        raise UserError(unknown_name("backbone", name, list_torchvision()))
    body = call_with(name, partial(models.get_model, name, weights=None), parameters)
    return cut_classifier(body)


def build_timm(name: str, pretrained: bool = False, **parameters: Any) -> Backbone:
    """A timm network by its name, with random weights, or the ones that timm has for it."""
    timm = import_timm()
    if name not in timm.list_models():
        raise UserError(unknown_name("timm backbone", name, timm.list_models()))
    make = partial(timm.create_model, name, num_classes=0)
    body = _fetch_timm(name, make, parameters) if pretrained else call_with(name, make, parameters)
    width = int(getattr(body, "head_hidden_size", None) or body.num_features)
    return Backbone(body, width, _timm_stages(body), type(body).__name__ in _CHANNELS_LAST)


def _fetch_timm(name: str, make: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    """With published weights; where there are none, or no network, what to do instead."""
    from timm.models import get_pretrained_cfg

    found = get_pretrained_cfg(name)
    place = found.url if found else ""
    if found and found.hf_hub_id:
        place = f"model.safetensors of {found.hf_hub_id} at the Hugging Face Hub"
    if not place:
        raise UserError(
            f"timm/{name} has no published weights: give a .safetensors or .pth file, or model.pretrained=''"
        )
    try:
        return make(pretrained=True, **parameters)
    except Exception as error:  # of any of the libraries that fetch, or of the parameters
        call_with(name, make, parameters)  # names the parameters, if it is they
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"the weights of timm/{name} could not be fetched ({reason}): fetch {place} elsewhere and set "
            "model.pretrained to the file, .safetensors or .pth, or start from random weights with model.pretrained=''"
        ) from error


def build_own(path: str, **parameters: Any) -> Backbone:
    """`package.module:name` of a class or function that gives an nn.Module; the current folder is searched first.

    A module with an integer `num_features` gives features of that width; of any other one the last nn.Linear is
    taken to be its classifier and cut off.
    """
    module_name, _, attribute = path.partition(":")
    try:
        make = getattr(import_own(module_name, [Path.cwd()]), attribute)
    except (UserError, AttributeError) as error:
        raise UserError(f"the backbone {path!r} cannot be imported: {error}") from error
    with running_own(f"the backbone {path!r}"):
        body = call_with(path, make, parameters)
        if not isinstance(body, nn.Module):
            raise UserError(f"the backbone {path!r} gave a {type(body).__name__}, expected an nn.Module")
        width = getattr(body, "num_features", None)
        _check_own(path, body)
    if not isinstance(width, int) or isinstance(width, bool):
        return cut_classifier(body)
    require(width > 0, f"num_features of the backbone {path!r}", "positive", width)
    return Backbone(body, width)


def _check_own(path: str, body: nn.Module) -> None:
    """What can be known before the first batch: it can be saved, and computes in single precision."""
    for name, tensor in body.named_parameters():
        if is_lazy(tensor) or tensor.device.type == "meta":
            raise UserError(f"{name} of the backbone {path!r} has no values yet: give its module all sizes, on the CPU")
        if tensor.dtype != torch.float32:
            raise UserError(f"{name} of the backbone {path!r} is {tensor.dtype}, expected torch.float32: convert it")
    unsaved = [name for name, value in body.state_dict().items() if not isinstance(value, Tensor)]
    if unsaved:
        raise UserError(f"the state {unsaved[0]} of the backbone {path!r} is not a tensor: only tensors are saved")


def cut_classifier(body: nn.Module) -> Backbone:
    """Replace the last nn.Linear by nothing; its input is the features."""
    linear = [(path, module) for path, module in body.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise UserError(f"{type(body).__name__} ends in no nn.Linear: it cannot be used as a backbone")
    path, classifier = linear[-1]
    if not path:
        raise UserError("the backbone is a single nn.Linear, without features before it: give a network of more layers")
    parent, _, child = path.rpartition(".")
    setattr(body.get_submodule(parent), child, nn.Identity())
    kind = type(body).__name__
    return Backbone(body, classifier.in_features, _torchvision_stages(body), kind in _CHANNELS_LAST)


def list_torchvision() -> list[str]:
    """Names of torchvision's image classifiers that end in one linear layer."""
    from torchvision import models

    names = models.list_models(module=models)
    return [name for name in names if name not in _AUXILIARY and not name.startswith("squeezenet")]


def import_timm() -> Any:
    return import_extra("timm", "timm", "this backbone")


def call_with(name: str, make: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    """Call a constructor; parameters it does not take, or not with these values, are the user's mistake."""
    try:
        return make(**parameters)
    except UserError:
        raise
    except Exception as error:
        if not parameters:
            raise  # nothing of it was the user's
        reason = str(error).partition("\n")[0]
        raise UserError(f"the backbone {name} could not be built with model.parameters: {reason}") from error


def find_stages(body: nn.Module) -> dict[str, str]:
    """Stage -> path of its module, for a network that torchvision or timm made; empty for any other.

    Empty also where maps have their channels last, as `FeatureTaps` would have to know.
    """
    if type(body).__name__ in _CHANNELS_LAST:
        return {}
    if hasattr(body, "feature_info"):
        return _timm_stages(body)
    return _torchvision_stages(body) if type(body).__module__.startswith("torchvision.") else {}


def _torchvision_stages(body: nn.Module) -> dict[str, str]:
    kind = type(body).__name__
    paths = _STAGES.get(kind, ())
    if kind == "VisionTransformer":
        layers = [path for path, _ in body.named_modules() if path.count(".") == 2 and "encoder_layer_" in path]
        paths = _quarter(layers)
    elif kind == "MobileNetV3":
        last = _MOBILENET_V3[len(body.get_submodule("features"))]  # type: ignore[arg-type]
        paths = tuple(f"features.{layer}" for layer in last)
    elif kind == "VGG":
        paths = tuple(path for path, module in body.named_modules() if isinstance(module, nn.MaxPool2d))
    return {f"stage{number}": path for number, path in enumerate(paths, 1)}


def _timm_stages(body: Any) -> dict[str, str]:
    """timm lists the modules after which the features change; a stem is no stage, many equal blocks make four."""
    modules = dict(body.named_modules())
    paths = [str(info["module"]) for info in getattr(body, "feature_info", ()) if info["module"] in modules]
    paths = [path for path in paths if path.split(".")[0] not in ("act1", "stem", "conv1", "bn1")]
    return {f"stage{number}": path for number, path in enumerate(_quarter(paths), 1)}


def _quarter(paths: list[str]) -> tuple[str, ...]:
    """The last block of each quarter, where there are more than a few blocks."""
    if len(paths) <= _QUARTERS + 1:
        return tuple(paths)
    return tuple(paths[len(paths) * (k + 1) // _QUARTERS - 1] for k in range(_QUARTERS))
