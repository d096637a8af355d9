"""What of a training is replayed as CUDA graphs: a small network's kernels are quicker than their launching."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from stablenet.algorithms import Algorithm
from stablenet.engine.config import TrainConfig
from stablenet.engine.optimizers import rate_rests
from stablenet.models import Network
from stablenet.replay import quiet_capture

Graphs = Literal["none", "passes", "step"]

SMALL_IMAGE = 64  # pixels; beyond it the kernels of most networks are long enough to hide their launches
LEAST_STEPS = 32  # of an epoch, for what its recording costs; an estimate: 42 and more are what has been trained with
SMALL_RESNET = 12_000_000  # parameters; up to here larger images are captured too: ResNet-18 at 224 gains four per cent


class TappedForward(nn.Module):
    """`Network.forward_taps` as a module's forward, which is what can be captured."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return self.network.forward_taps(images)


def choose_graphs(
    algorithm: Algorithm[Any],
    config: TrainConfig,
    device: torch.device,
    image_size: int,
    steps: int,
    same_shapes: bool,
    world: int,
) -> Graphs:
    """The most that is possible and worth it: whole steps, the network's two passes, or nothing.

    steps: of an epoch. Whole steps are recorded anew in each, and need a rate that rests in it.
    """
    if device.type != "cuda" or world > 1:
        return "none"
    small = image_size <= SMALL_IMAGE
    if small and algorithm.replayable and steps >= LEAST_STEPS and rate_rests(config):
        return "step"
    worth = small or _is_small_resnet(algorithm.network)
    return "passes" if worth and same_shapes and algorithm.one_plain_pass else "none"


def _is_small_resnet(network: Network) -> bool:
    """Other families are not captured at large images: nobody has tried whether each of them can be."""
    count = sum(parameter.numel() for parameter in network.parameters())
    return type(network.body).__name__ == "ResNet" and count <= SMALL_RESNET


def graph_network(algorithm: Algorithm[Any], images: Tensor, dtype: torch.dtype | None) -> None:
    """Capture forward and backward for images of this shape, and let the method use them.

    Capturing runs the network a few times: its buffers are put back. dtype: of autocast, None without.
    """
    buffers = {name: buffer.clone() for name, buffer in algorithm.network.named_buffers()}
    # The cache of cast weights must be off: a graph may not depend on what was cast outside of it.
    with quiet_capture(), torch.autocast("cuda", dtype=dtype, enabled=dtype is not None, cache_enabled=False):
        graphed: Any = torch.cuda.make_graphed_callables(TappedForward(algorithm.network), (images,))
    with torch.no_grad():
        for name, buffer in algorithm.network.named_buffers():
            buffer.copy_(buffers[name])
    algorithm.run_network_with(lambda images: graphed(images))  # no submodule: it shares the network's weights
