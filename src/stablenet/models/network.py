"""A backbone and its classifier: one forward pass gives logits and whatever features a method taps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from stablenet.errors import UserError
from stablenet.models.maps import Cut, find_cut
from stablenet.models.taps import LAST, Tap, parse_tap, shape_tap
from stablenet.registry import unknown_name


@dataclass(frozen=True)
class Backbone:
    """body: images (B, 3, s, s) -> features (B, width).   stages: short names for modules of the body.

    channels_last: whether its maps are (B, H, W, C).
    """

    body: nn.Module
    width: int
    stages: dict[str, str] = field(default_factory=dict)
    channels_last: bool = False


class Network(nn.Module):
    """Features, then a linear classifier.

    taps: features that `forward_taps` hands over beside the logits; none cost nothing.
    adaptation: how the body differs from its family's own definition (see `pretrained.adapt`); kept with the weights.
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
        self._caught: dict[str, Tensor] = {}
        self._handles: list[Any] = []

    def forward_features(self, images: Tensor) -> Tensor:
        """images (B, 3, s, s) -> (B, width), what the classifier sees."""
        return self._check_features(self.body(images))

    def forward_maps(self, images: Tensor) -> Tensor:
        """images (B, 3, s, s) -> the body's last convolutional maps (B, C, H, W); see `require_maps`."""
        maps: Tensor = self.require_maps().maps(self.body, images)
        if maps.ndim != 4:
            raise UserError(
                f"the backbone {type(self.body).__name__} gave {tuple(maps.shape)} before its pooling, expected "
                "convolutional maps (batch, channels, height, width): choose a convolutional network"
            )
        return maps

    def forward_tail(self, maps: Tensor) -> Tensor:
        """(B, C, H, W), as they came or changed -> features (B, width), what the classifier sees."""
        return self._check_features(self.require_maps().tail(self.body, maps))

    def require_maps(self) -> Cut:
        """Where the body is cut at its last maps; an error for a network without a known place."""
        if self._cut is None:
            raise UserError(
                f"the backbone {type(self.body).__name__} has no known last convolutional maps: choose a convolutional "
                "network, or give your own the methods forward_maps(images) and forward_tail(maps)"
            )
        return self._cut

    def _check_features(self, features: Tensor) -> Tensor:
        if features.ndim != 2 or features.shape[1] != self.width:
            raise UserError(
                f"the backbone gave features of shape {tuple(features.shape)}, expected (batch, {self.width}): "
                "a network of one's own must end in pooled features, or in its only classifier, an nn.Linear"
            )
        return features

    def forward_head(self, features: Tensor) -> Tensor:
        """(B, width) -> logits (B, classes)."""
        logits: Tensor = self.head(features)
        return logits

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, 3, s, s) -> logits (B, classes)."""
        return self.forward_head(self.forward_features(images))

    def forward_taps(self, images: Tensor) -> tuple[Tensor, ...]:
        """Logits, then the features of every tap in order."""
        try:
            last = self.forward_features(images)
            caught = {**self._caught, LAST: last}
        finally:
            self._caught.clear()
        features = (caught[str(tap)] for tap in self.taps)
        return (self.forward_head(last), *(f.detach() if self._detach else f for f in features))

    def tap(self, names: Sequence[str], detach: bool = False) -> None:
        """Choose the taps of `forward_taps`; an unknown place is answered with the known ones.

        detach: hand features over without their graph, where nobody differentiates through them.
        """
        for handle in self._handles:
            handle.remove()
        self.taps = tuple(parse_tap(name) for name in names)
        self._detach = detach
        self._handles = [self._catch(tap) for tap in dict.fromkeys(self.taps) if tap.place != LAST]

    def _catch(self, tap: Tap) -> Any:
        path = self.stages.get(tap.place, tap.place)
        modules = dict(self.body.named_modules())
        if not path or path not in modules:
            raise UserError(unknown_name("tap", tap.place, (LAST, *self.stages, *(m for m in modules if m))))

        def keep(module: nn.Module, args: Any, output: Tensor) -> None:
            # At once: what follows may change the output in place.
            output = output.detach() if self._detach else output
            self._caught[str(tap)] = shape_tap(output, tap.form, self._channels_last)

        return modules[path].register_forward_hook(keep)
