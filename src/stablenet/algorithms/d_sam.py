"""D-SAM: one module per source domain that aggregates the blocks of a shared ResNet in its own way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from stablenet.algorithms.algorithm import Algorithm, Context, StepOutput, classify
from stablenet.data.loader import Batch
from stablenet.errors import UserError
from stablenet.models import FeatureTaps, Network
from stablenet.models.network import Backbone
from stablenet.values import Count, ShareBelowOne, check_fields

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
        self._blocks = tap_blocks(network, paths)

    @property
    def domain_modules(self) -> list[DomainModule]:
        """One module per source domain."""
        return cast(list[DomainModule], list(self.aggregators))

    def forward_blocks(self, images: Tensor) -> list[Tensor]:
        """images (B, 3, s, s) -> the maps (B, C_k, H_k, W_k) of every residual block."""
        self.body(images)
        return list(self._blocks.take().values())

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


def tap_blocks(network: Network, paths: Sequence[str]) -> FeatureTaps:
    """The maps of the blocks at these paths, with their gradients."""
    return FeatureTaps(network.body, [f"{path}:maps" for path in paths], detach=False)


@torch.no_grad()
def measure_blocks(network: Network, paths: Sequence[str]) -> tuple[list[int], list[int]]:
    """Channels of every block's maps, and by how much they are smaller than those of the block before."""
    taps = tap_blocks(network, paths)
    training = network.training
    network.eval()(torch.zeros(1, 3, _PROBE, _PROBE))
    network.train(training)
    shapes = [maps.shape for maps in taps.take().values()]
    taps.remove()
    sides = [shape[-1] for shape in shapes]
    strides = [before // side for before, side in zip([sides[0], *sides[:-1]], sides, strict=True)]
    return [shape[1] for shape in shapes], strides


@dataclass(frozen=True, kw_only=True)
class DSAMSettings:
    """growth: channels of an aggregation for each channel of its block.
    dropout: before every aggregation, whole channels at a time, and before the classifiers.
    """

    growth: Count = 2  # published code
    dropout: ShareBelowOne = 0.5  # published code

    def __post_init__(self) -> None:
        check_fields(self)


class DSAM(Algorithm[DSAMSettings]):
    r"""min 1/n Σ_i CE(g_{d(i)}(b_1(x_i), …, b_B(x_i)), y_i) (D'Innocente & Caputo, GCPR 2018).

    b_k are the maps of the residual blocks of one network, and g_d the aggregation module of domain d:
    a_1 = b_1, a_k = ReLU(conv_1×1(dropout(a_{k−1} ⊕ b_k))), with a_{k−1} shrunk by a strided 1×1 convolution and ReLU
    where b_k is smaller, then a mean over positions, dropout and a linear classifier. A sample trains the backbone and
    the module of its own domain. A sample of a target gets the mean of all modules' logits; in source validation a
    sample's own module is left out, so that it is treated like a target sample.

    Departures: the loss is the mean over the batch, which with balanced domains is the mean over domains. A validation
    sample from a domain without training samples gets all modules, like a target sample.
    """

    title = "a module per source domain over the blocks of a ResNet"
    settings_type = DSAMSettings
    uses_domains = True
    one_plain_pass = False
    several_processes = False  # a process whose share lacks a domain would leave its module without a gradient

    network: AggregatedNetwork

    def __init__(self, network: Network, settings: DSAMSettings, context: Context) -> None:
        domains = len(context.training_domains)
        super().__init__(AggregatedNetwork(network, domains, settings.growth, settings.dropout), settings, context)

    def loss(self, batch: Batch) -> StepOutput:
        logits = self.network.forward_own(batch.x, self.split_rows(batch.domain))
        per_sample, accuracy = classify(logits, batch.y)
        return StepOutput(per_sample, None, {"accuracy": accuracy})

    def validator(self) -> Callable[[Batch], Tensor]:
        return self._predict_by_others

    def _predict_by_others(self, batch: Batch) -> Tensor:
        each = self.network.forward_each(self.network.forward_features(batch.x))
        return average_others(each, self.place_domains(batch.domain))


def average_others(logits: Tensor, place: Tensor) -> Tensor:
    """Mean over all modules but a sample's own.   logits: (b, domains, classes).   place: (b,), -1 leaves none out."""
    others = torch.arange(logits.shape[1], device=place.device) != place[:, None]
    weights = others.to(logits.dtype) / others.sum(1, keepdim=True)
    return (weights[:, :, None] * logits).sum(1)
