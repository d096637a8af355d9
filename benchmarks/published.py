"""What the authors' published code computes for one batch, reimplemented from its description, with autograd.

It serves two purposes: the test of the preset `published`, and the slow side of the speed comparison.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Table:
    """The global memory: rows of averaged features and of averaged logits."""

    features: Tensor  # (rows, m)
    logits: Tensor  # (rows,)


def fourier_channels(x: Tensor, omega: Tensor, phase: Tensor) -> Tensor:
    """x (n, m), omega (q,), phase (m, q) → (n, m, 2q): angles squeezed onto [0, π/2] across features, cos and sin."""
    angle = x[:, :, None] * omega + phase
    angle = angle - angle.min(1, keepdim=True).values
    angle = angle / angle.max(1, keepdim=True).values * (math.pi / 2)
    return math.sqrt(2 / len(omega)) * torch.cat([angle.cos(), angle.sin()], 2)


def balance_loss(channels: Tensor, p: Tensor) -> Tensor:
    """Squared weighted covariances over i ≠ j, channel by channel.   channels: (n, m, c).   p: (n,), sums to 1."""
    total = channels.new_zeros(())
    for c in range(channels.shape[2]):
        u = channels[:, :, c]
        mean = p @ u
        squared = (u.T @ (p[:, None] * u) - torch.outer(mean, mean)) ** 2
        total = total + squared.sum() - squared.trace()
    return total


def learn_weights(features: Tensor, table: Table, draw, *, steps: int = 20, rate: float = 1.0) -> tuple[Tensor, Tensor]:
    """Logits and weights p (summing to 1) of a batch (B, m).   draw() gives new (omega, phase) at every step."""
    logits = torch.zeros(len(features), device=features.device, requires_grad=True)
    optimizer = torch.optim.SGD([logits], lr=rate, momentum=0.9)
    rows = torch.cat([features.detach(), table.features])
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * (1.0 if step < 10 else 0.1)
        optimizer.zero_grad()
        p = torch.softmax(torch.cat([logits, table.logits]), 0)
        loss = balance_loss(fourier_channels(rows, *draw()), p) / 70 + torch.softmax(logits, 0).square().sum()
        loss.backward()
        optimizer.step()
    return logits.detach(), torch.softmax(logits.detach(), 0)


def update_table(table: Table, features: Tensor, logits: Tensor, iteration: int, keep: float = 0.9) -> None:
    """A plain mean over the first ten batches, then a running one; a short batch touches the first rows."""
    share = iteration / (iteration + 1) if iteration < 10 else keep
    for old, new in ((table.features, features.detach()), (table.logits, logits)):
        old[: len(new)] = share * old[: len(new)] + (1 - share) * new
