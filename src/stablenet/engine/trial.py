"""How long a step of training takes, from a few steps with random images."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from stablenet.models import build_network

STEPS = 3  # timed, after one that is slow
LARGEST_BATCH = 32  # images; time per image hardly falls beyond


def time_image(
    name: str, parameters: Mapping[str, Any], side: int, classes: int, batch_size: int, device: str
) -> float:
    """Seconds per image of a step: forward and backward, without reading images, solving and the optimiser's update.

    name, parameters: of the network, as in `build_network`; its weights are random.   device: cpu, cuda or cuda:1.
    """
    batch = min(batch_size, LARGEST_BATCH)
    with torch.random.fork_rng():
        network = build_network(name, classes, parameters=parameters).to(device)
        images = torch.rand(batch, 3, side, side).to(device)
        labels = torch.arange(batch, device=device) % classes
        for step in range(STEPS + 1):
            if step == 1:
                start = time.perf_counter()
            functional.cross_entropy(network(images), labels).backward()
            float(images[0, 0, 0, 0])  # waits for the device
        return (time.perf_counter() - start) / (STEPS * batch)
