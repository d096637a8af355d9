"""A backbone and its classifier: one forward pass returns logits and the features that a method taps.

Also a body cut in two at its last convolutional maps: what makes them, and the tail from them to the features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablenet.errors import UserError
from stablenet.models.taps import LAST, B, FeatureTaps, Tap, parse_tap, read_features

Half = Callable[[Any, Tensor], Any]  # modules are called: torch gives them no types


@dataclass(frozen=True)
class Cut:
    """maps: body, images (B, 3, s, s) -> (B, C, H, W).   tail: body, maps -> features (B, width).

    Functions of the body, not of one body: a copied network cuts its own copy.
    """

    maps: Half
    tail: Half


def find_cut(body: nn.Module) -> Cut | None:
    """Where the body is cut, None if unknown.

    Your own network can define it by two methods, forward_maps(images) and forward_tail(maps).
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


@dataclass(frozen=True)
class Backbone:
    """body: images (B, 3, s, s) -> features (B, width).   stages: short names for modules of the body.

    channels_last: whether its maps are (B, H, W, C).
    """

    body: nn.Module
    width: int
    stages: dict[str, str] = field(default_factory=dict)
    channels_last: bool = False


def freeze_batchnorm(module: nn.Module) -> None:
    """Use and keep the statistics of all BatchNorm layers until the next `train`; their slopes are still learned."""
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.eval()


class Network(nn.Module):
    """Features, then a linear classifier.

    taps: features that `forward_taps` returns with the logits; without any there is no cost.
    adaptation: how the body differs from its family's own definition (see `build.adapt`); kept with the weights.
    """

    def __init__(self, backbone: Backbone, num_classes: int) -> None:
        super().__init__()
        self.body = backbone.body
        self.head = nn.Linear(backbone.width, num_classes)
        self.width = backbone.width
        self.stages = dict(backbone.stages)
        self.adaptation: dict[str, Any] = {}
        self.taps: tuple[Tap, ...] = ()
        self._detach = False
        self._channels_last = backbone.channels_last
        self._cut = find_cut(backbone.body)
        self._hooks: FeatureTaps | None = None
        self._keeps_statistics = False

    def keep_statistics(self) -> None:
        """From now on BatchNorm layers use and keep the statistics they have, also in training."""
        self._keeps_statistics = True
        freeze_batchnorm(self)

    def train(self, mode: bool = True) -> Network:
        super().train(mode)
        if self._keeps_statistics:
            freeze_batchnorm(self)
        return self

    def forward_features(self, images: Tensor) -> Tensor:
        """images (B, 3, s, s) -> (B, width), what the classifier sees."""
        return self._check_features(self.body(images), images.shape[0])

    def forward_maps(self, images: Tensor) -> Tensor:
        """images (B, 3, s, s) -> the body's last convolutional maps (B, C, H, W); see `require_maps`."""
        maps: Tensor = self.require_maps().maps(self.body, images)
        if not isinstance(maps, Tensor) or maps.ndim != 4:
            found = tuple(maps.shape) if isinstance(maps, Tensor) else f"a {type(maps).__name__}"
            raise UserError(
                f"the backbone {type(self.body).__name__} gave {found} before its pooling, expected "
                "convolutional maps (batch, channels, height, width): choose a convolutional network"
            )
        return maps

    def forward_tail(self, maps: Tensor) -> Tensor:
        """(B, C, H, W), as they came or changed -> features (B, width), what the classifier sees."""
        return self._check_features(self.require_maps().tail(self.body, maps), maps.shape[0])

    def require_maps(self) -> Cut:
        """Where the body is cut at its last maps; an error if the network has no known place."""
        if self._cut is None:
            raise UserError(
                f"the backbone {type(self.body).__name__} has no known last convolutional maps: choose a convolutional "
                "network, or give your own the methods forward_maps(images) and forward_tail(maps)"
            )
        return self._cut

    def _check_features(self, features: Any, batch: int) -> Tensor:
        if not isinstance(features, Tensor) or not self._takes(features):
            is_tensor = isinstance(features, Tensor)
            found = f"{features.dtype} on {features.device}" if is_tensor else f"a {type(features).__name__}"
            raise UserError(
                f"the backbone gave {found}, expected features of torch.float32 on "
                f"{next(self.head.parameters()).device}: let its forward return one such tensor"
            )
        if features.ndim != 2 or features.shape[1] != self.width:
            raise UserError(
                f"the backbone gave features of shape {tuple(features.shape)}, expected (batch, {self.width}): "
                "a network of your own must end in pooled features, or in its only classifier, an nn.Linear"
            )
        if features.shape[0] != batch:  # not len(): an exported network takes batches of any size
            raise UserError(f"the backbone gave {len(features)} features for {batch} images: give one for each image")
        return features

    def _takes(self, features: Tensor) -> bool:
        """Whether the head can work with features of this type, which is its own, or less precise in autocast."""
        if features.dtype == torch.float64 or not features.is_floating_point():
            return False
        own = next(self.head.parameters())
        fits = features.dtype == own.dtype or torch.is_autocast_enabled(features.device.type)
        return fits and features.device == own.device

    def forward_head(self, features: Tensor) -> Tensor:
        """(B, width) -> logits (B, classes)."""
        logits: Tensor = self.head(features)
        return logits

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, 3, s, s) -> logits (B, classes)."""
        return self.forward_head(self.forward_features(images))

    def forward_taps(self, images: Tensor) -> tuple[Tensor, ...]:
        """Logits, then the features of every tap in order."""
        last = self.forward_features(images)
        caught = {**(self._hooks.take() if self._hooks else {}), LAST: last}
        features = (caught[str(tap)] for tap in self.taps)
        return (self.forward_head(last), *(f.detach() if self._detach else f for f in features))

    def name_taps(self, features: Sequence[Tensor]) -> dict[str, Tensor]:
        """The features of every tap, in order, by the tap's name."""
        return {str(tap): feature for tap, feature in zip(self.taps, features, strict=True)}

    def tap(self, names: Sequence[str], detach: bool = False) -> None:
        """Choose the taps of `forward_taps`; for an unknown place the error lists the known ones.

        detach: return features without their graph, if they are not differentiated through.
        """
        if self._hooks is not None:
            self._hooks.remove()
        self.taps, self._detach, self._hooks = tuple(parse_tap(name) for name in names), detach, None
        inside = [str(tap) for tap in self.taps if tap.place != LAST]
        if inside:
            self._hooks = FeatureTaps(
                self.body,
                inside,
                stages=self.stages,
                also_known=(LAST,),
                detach=detach,
                channels_last=self._channels_last,
            )

    def read_taps(
        self,
        names: Sequence[str],
        batches: Iterable[tuple[B, Tensor]],
        collect: Callable[[B, Mapping[str, Tensor]], None],
    ) -> None:
        """Pass a data set through the network and collect the features of these taps; see `read_features`.

        The taps that were chosen before are chosen again afterwards.
        """
        before, detach = [str(tap) for tap in self.taps], self._detach
        self.tap(names, detach=True)
        try:
            read_features(self, lambda images: self.name_taps(self.forward_taps(images)[1:]), batches, collect)
        finally:
            self.tap(before, detach)
