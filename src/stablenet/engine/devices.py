"""Lightning Fabric: device, precision and processes; and isolated random number generators."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from stablenet.errors import UserError
from stablenet.randomness import mix_process_seed


def start_fabric(device: str, precision: str) -> Any:
    """Launch Fabric. Under torchrun, it joins the other processes."""
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # its import sets a more verbose level
    accelerator, devices = choose_device(device)
    world, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    strategy: Any = DDPStrategy() if world > 1 else "auto"
    fabric = Fabric(
        accelerator=accelerator,
        devices=local if world > 1 else devices,
        num_nodes=world // local,
        strategy=strategy,
        precision="bf16-mixed" if uses_bf16(precision, accelerator) else "32-true",
    )
    fabric.launch()
    return fabric


def uses_bf16(precision: str, accelerator: str) -> bool:
    """Whether the network computes in bfloat16: on request, and by default on GPUs with native support."""
    if precision == "auto":
        return accelerator == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return precision == "bf16"


def choose_device(device: str) -> tuple[str, int | list[int]]:
    """Fabric's accelerator and devices for "auto", "cpu", "cuda" or "cuda:1"."""
    kind, _, number = device.partition(":")
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu" and not number:
        return "cpu", 1
    if kind != "cuda" or (number and not number.isdigit()):
        raise UserError(f"unknown device {device!r}: choose auto, cpu, cuda, or a GPU such as cuda:0")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number or 0) >= found:
        available = f"torch finds only {found}" if found else "torch finds no GPU"
        raise UserError(f"the device {device!r} is not available, {available}: use --device cpu or auto")
    return "cuda", [int(number)] if number else 1


def name_device(kind: str, index: int = 0) -> str:
    """The name of a device, as in `timing.jsonl`.   kind: cpu or cuda."""
    name = torch.cuda.get_device_name(index) if kind == "cuda" else platform.processor() or platform.machine()
    return f"{kind}: {name}"


@contextmanager
def own_random_numbers(device: torch.device) -> Iterator[None]:
    """Allow the block to seed torch's global generators; their state is restored afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        yield


def seed_generators(device: torch.device, seed: int, rank: int, step: int) -> None:
    """Seed the generators, so that dropout and initial weights are functions of (seed, rank, step): no state to save.

    Step −1 is the initialization of the network, which is the same in every process.
    """
    value = mix_process_seed(seed, rank, step)
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(value)
