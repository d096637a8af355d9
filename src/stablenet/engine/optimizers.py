"""The optimiser, and the learning rate as a function of the step."""

from __future__ import annotations

import math
from typing import Any

import torch

from stablenet.algorithms import Algorithm
from stablenet.engine.config import TrainConfig

FLOOR = 0.01  # of the quarter cosine, relative to its start (published code)


def make_optimizer(algorithm: Algorithm[Any], config: TrainConfig, device: torch.device) -> torch.optim.Optimizer:
    """The optimiser of the method's parameter groups; fused on a GPU."""
    groups = algorithm.parameter_groups()
    shared: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    if device.type == "cuda":
        shared["fused"] = True
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=config.momentum, nesterov=config.nesterov, **shared)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, **shared)


def learning_rate(config: TrainConfig, epoch: int, step: int, total_steps: int) -> float:
    """Learning rate at step `step` (from 0) in epoch `epoch` (from 0); stateless, so nothing needs to be saved."""
    if config.schedule == "steps":
        passed = sum(epoch >= milestone for milestone in config.milestones)
        return config.learning_rate * config.decay**passed
    if config.schedule == "cosine":
        return config.learning_rate * (1 + math.cos(math.pi * step / total_steps)) / 2
    if config.schedule == "quarter-cosine":
        return config.learning_rate * (FLOOR + math.cos(math.pi / 2 * epoch / config.epochs)) / (1 + FLOOR)
    return config.learning_rate


def rate_rests(config: TrainConfig) -> bool:
    """Whether the rate is constant within an epoch."""
    return config.schedule in ("constant", "steps", "quarter-cosine")


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate_scale"]
