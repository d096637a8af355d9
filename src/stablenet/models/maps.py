"""A body cut in two at its last convolutional maps: what makes them, and the tail from them to the features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

Half = Callable[[Any, Tensor], Any]  # modules are called: torch gives them no types


@dataclass(frozen=True)
class Cut:
    """maps: body, images (B, 3, s, s) -> (B, C, H, W).   tail: body, maps -> features (B, width).

    Functions of the body, not of one body: a copied network cuts its own copy.
    """

    maps: Half
    tail: Half


def find_cut(body: nn.Module) -> Cut | None:
    """Where the body is cut, None where that is not known.

    A network of one's own can say it with two methods, forward_maps(images) and forward_tail(maps).
    """
    if hasattr(body, "forward_maps") and hasattr(body, "forward_tail"):
        return Cut(_own_maps, _own_tail)
    if type(body).__module__.startswith("timm.") and not hasattr(body, "patch_embed"):
        return Cut(_timm_maps, _timm_tail)
    return _TORCHVISION.get(type(body).__name__) if type(body).__module__.startswith("torchvision.") else None


def _own_maps(body: Any, images: Tensor) -> Any:
    return body.forward_maps(images)


def _own_tail(body: Any, maps: Tensor) -> Any:
    return body.forward_tail(maps)


def _timm_maps(body: Any, images: Tensor) -> Any:
    return body.forward_features(images)


def _timm_tail(body: Any, maps: Tensor) -> Any:
    return body.forward_head(maps)


def _resnet_maps(body: Any, images: Tensor) -> Any:
    maps = body.maxpool(body.relu(body.bn1(body.conv1(images))))
    return body.layer4(body.layer3(body.layer2(body.layer1(maps))))


def _regnet_maps(body: Any, images: Tensor) -> Any:
    return body.trunk_output(body.stem(images))


def _pool(body: Any, maps: Tensor) -> Any:
    return body.fc(body.avgpool(maps).flatten(1))


def _features_maps(body: Any, images: Tensor) -> Any:
    return body.features(images)


def _features_tail(body: Any, maps: Tensor) -> Any:
    return body.classifier(body.avgpool(maps).flatten(1))


def _convnext_tail(body: Any, maps: Tensor) -> Any:
    return body.classifier(body.avgpool(maps))


def _densenet_tail(body: Any, maps: Tensor) -> Any:
    return body.classifier(_average(functional.relu(maps)))


def _mobilenet_v2_tail(body: Any, maps: Tensor) -> Any:
    return body.classifier(_average(maps))


def _average(maps: Tensor) -> Tensor:
    return functional.adaptive_avg_pool2d(maps, 1).flatten(1)


_TORCHVISION = {
    "ResNet": Cut(_resnet_maps, _pool),
    "RegNet": Cut(_regnet_maps, _pool),
    "ConvNeXt": Cut(_features_maps, _convnext_tail),
    "DenseNet": Cut(_features_maps, _densenet_tail),
    "MobileNetV2": Cut(_features_maps, _mobilenet_v2_tail),
    **dict.fromkeys(("AlexNet", "EfficientNet", "MobileNetV3", "VGG"), Cut(_features_maps, _features_tail)),
}
