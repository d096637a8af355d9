"""D-SAM's network: the blocks of a ResNet, aggregated once for every source domain."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from stablenet.errors import UserError
from stablenet.models import Network
from stablenet.models.network import Backbone

_BLOCKS = ("BasicBlock", "Bottleneck")  # as torchvision and timm call the blocks of their ResNets
_PROBE = 64  # pixels: every stage still has more than one position


class Aggregation(nn.Module):
    """What was aggregated so far joined with the next block: (B, P, h, w), (B, C, H, W) -> (B, width, H, W).

    stride: by how much the block's maps are smaller than those before them.
    """

    def __init__(self, previous: int, channels: int, width: int, stride: int, dropout: float) -> None:
        super().__init__()
        shrink = [nn.Conv2d(previous, previous, 1, stride), nn.ReLU(inplace=True)]
        self.shrink = nn.Sequential(*(shrink if stride > 1 else []))
        self.join = nn.Sequential(
            nn.Dropout2d(dropout), nn.Conv2d(previous + channels, width, 1), nn.ReLU(inplace=True)
        )

    def forward(self, previous: Tensor, block: Tensor) -> Tensor:
        joined: Tensor = self.join(torch.cat([self.shrink(previous), block], 1))
        return joined


class DomainModule(nn.Module):
    """One domain's way through the blocks, and its classifier. channels, strides: of the blocks, in order."""

    def __init__(
        self, channels: Sequence[int], strides: Sequence[int], growth: int, dropout: float, num_classes: int
    ) -> None:
        super().__init__()
        widths = [channels[0], *(growth * number for number in channels[1:])]
        self.layers = nn.ModuleList(
            Aggregation(before, number, width, stride, dropout)
            for before, number, width, stride in zip(widths[:-1], channels[1:], widths[1:], strides[1:], strict=True)
        )
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(widths[-1], num_classes)

    def forward_features(self, blocks: Sequence[Tensor]) -> Tensor:
        """The blocks' maps (B, C_k, H_k, W_k) -> (B, width)."""
        maps = blocks[0]
        for layer, block in zip(self.layers, blocks[1:], strict=True):
            maps = layer(maps, block)
        return maps.mean((2, 3))

    def forward_head(self, features: Tensor) -> Tensor:
        """(B, width) -> logits (B, classes)."""
        logits: Tensor = self.classifier(self.dropout(features))
        return logits


class AggregatedNetwork(Network):
    """A ResNet whose classifier is replaced by one module per domain; its logits are the mean of theirs.

    Its features are those of all modules, one after another.
    """

    def __init__(self, network: Network, domains: int, growth: int, dropout: float) -> None:
        paths = find_blocks(network)
        channels, strides = measure_blocks(network, paths)
        num_classes = network.head.out_features
        width = domains * growth * channels[-1]
        super().__init__(Backbone(network.body, width, network.stages), num_classes)
        del self.head  # every module has its own
        self.adaptation = network.adaptation
        self._cut = None  # its features come from all blocks, not from the last maps
        self.aggregators = nn.ModuleList(
            DomainModule(channels, strides, growth, dropout, num_classes) for _ in range(domains)
        )
        self._blocks: dict[int, Tensor] = {}
        for number, path in enumerate(paths):
            # Methods, not functions of this place: a copy of the network then catches its own blocks.
            network.body.get_submodule(path).register_forward_hook(partial(self._keep, number))

    @property
    def domain_modules(self) -> list[DomainModule]:
        """One module per source domain."""
        return cast(list[DomainModule], list(self.aggregators))

    def forward_blocks(self, images: Tensor) -> list[Tensor]:
        """images (B, 3, s, s) -> the maps (B, C_k, H_k, W_k) of every residual block."""
        try:
            self.body(images)
            return [self._blocks[number] for number in sorted(self._blocks)]
        finally:
            self._blocks.clear()

    def forward_features(self, images: Tensor) -> Tensor:
        """images (B, 3, s, s) -> (B, domains · width)."""
        blocks = self.forward_blocks(images)
        return torch.cat([module.forward_features(blocks) for module in self.domain_modules], 1)

    def forward_each(self, features: Tensor) -> Tensor:
        """(B, domains · width) -> logits of every module (B, domains, classes)."""
        modules = self.domain_modules
        parts = features.chunk(len(modules), 1)
        return torch.stack([module.forward_head(part) for module, part in zip(modules, parts, strict=True)], 1)

    def forward_head(self, features: Tensor) -> Tensor:
        """(B, domains · width) -> the modules' mean logits (B, classes)."""
        return self.forward_each(features).mean(1)

    def forward_own(self, images: Tensor, rows: Sequence[Tensor]) -> Tensor:
        """Each sample through one module alone: rows[k] are the numbers of those for module k. -> (B, classes)."""
        blocks = self.forward_blocks(images)
        logits = []
        for module, chosen in zip(self.domain_modules, rows, strict=True):
            if len(chosen):
                logits.append(module.forward_head(module.forward_features([block[chosen] for block in blocks])))
        return torch.cat(logits)[torch.cat(list(rows)).argsort()]

    def _keep(self, number: int, module: nn.Module, args: Any, output: Tensor) -> None:
        self._blocks[number] = output


def find_blocks(network: Network) -> list[str]:
    """Paths of the residual blocks in the body, in order."""
    body = network.body
    stages = [(path, body.get_submodule(path)) for path in network.stages.values()]
    children = [(f"{path}.{name}", child) for path, stage in stages for name, child in stage.named_children()]
    if not children or not all(type(child).__name__ in _BLOCKS for _, child in children):
        raise UserError(
            f"D-SAM aggregates the residual blocks of a ResNet, and {type(body).__name__} has none: "
            "set model.name to a ResNet, for example resnet18"
        )
    return [path for path, _ in children]


@torch.no_grad()
def measure_blocks(network: Network, paths: Sequence[str]) -> tuple[list[int], list[int]]:
    """Channels of every block's maps, and by how much they are smaller than those of the block before."""
    shapes: list[torch.Size] = []
    handles = [
        network.body.get_submodule(path).register_forward_hook(lambda module, args, output: shapes.append(output.shape))
        for path in paths
    ]
    training = network.training
    network.eval()(torch.zeros(1, 3, _PROBE, _PROBE))
    network.train(training)
    for handle in handles:
        handle.remove()
    sides = [shape[-1] for shape in shapes]
    strides = [before // side for before, side in zip([sides[0], *sides[:-1]], sides, strict=True)]
    return [shape[1] for shape in shapes], strides
