"""One call of the weighting on the device: judge the values, join the memory, solve, remember.

Everything here is device work, for most settings without a decision of the host (`may_record`), so that a CUDA graph
can hold it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.weighting.kernels import Path, solve_fused
from stablenet.weighting.memory import Memory, Samples
from stablenet.weighting.pending import ALL_GOOD, BAD_LABEL
from stablenet.weighting.problem import solve_problem
from stablenet.weighting.settings import WeightingSettings
from stablenet.weighting.solver import Solution


@dataclass(frozen=True)
class StepResult:
    """weights: (B,) ones where the batch was bad.   verdict: a scalar, see `pending`; None where already checked."""

    weights: Tensor
    solution: Solution
    verdict: Tensor | None


def take_step(
    memory: Memory,
    settings: WeightingSettings,
    path: Path,
    z: Tensor,
    labels: Tensor | None,
    generator: torch.Generator,
) -> StepResult:
    """Weights of a batch z (B, m) with labels (B,) or (B, C); the memory takes it in, its counters stay."""
    verdict = valid = None
    if z.device.type != "cpu":
        z, verdict = judge_values(z, labels, memory.label_width)
        valid = verdict == ALL_GOOD
    own_labels = None if labels is None else label_rows(labels, memory.label_width)
    rows, fixed, joined_labels = join_memory(memory.recall(), z, own_labels, settings)
    solve = solve_fused if path == "fused" else solve_problem
    solution = solve(rows, joined_labels, fixed, len(z), settings, generator)
    weights = solution.weights if valid is None else solution.weights.masked_fill(~valid, 1.0)
    if settings.groups:
        measure = solution.logits if settings.memory_holds == "logits" else weights
        memory.write(Samples(z, measure, own_labels), valid)
    return StepResult(weights, solution, verdict)


def judge_values(z: Tensor, labels: Tensor | None, width: int | None) -> tuple[Tensor, Tensor]:
    """z (B, m) with zeros for what is not finite, and the verdict: the first bad column, BAD_LABEL or ALL_GOOD."""
    bad = (z - z) != 0  # x − x is zero for every finite x, and NaN for inf and NaN
    columns = bad.any(0)
    verdict = columns.to(torch.uint8).argmax().masked_fill(~columns.any(), ALL_GOOD)
    if labels is not None and labels.ndim == 1 and width is not None:
        verdict = verdict.masked_fill((verdict == ALL_GOOD) & (labels >= width).any(), BAD_LABEL)
    return z.masked_fill(bad, 0.0), verdict


def label_rows(labels: Tensor, width: int | None) -> Tensor:
    """Labels as they are compared and stored: integers, or columns where the memory averages them (width given)."""
    if labels.ndim == 2:
        return labels.to(torch.float32)
    if width is None:
        return labels
    return (labels[:, None] == torch.arange(width, device=labels.device)).to(torch.float32)


def join_memory(
    past: Samples | None, z: Tensor, labels: Tensor | None, settings: WeightingSettings
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Eq. concat_w: all rows, the memory's first (n, m); its weights or logits (n − B,); all labels."""
    if past is None:
        return z, z.new_empty(0), labels
    if past.labels is not None and labels is not None:
        labels = torch.cat([past.labels, labels])
    return torch.cat([past.features, z]), memory_measure(past.measure, settings), labels


def memory_measure(held: Tensor, settings: WeightingSettings) -> Tensor:
    """What the memory holds, as weights for a block simplex or as logits for a joint one."""
    wanted = "logits" if settings.logits == "joint" else "weights"
    if wanted == settings.memory_holds:
        return held
    if wanted == "logits":
        return held.clamp_min(torch.finfo(held.dtype).tiny).log()
    groups = held.view(settings.groups, -1) if settings.memory == "average" else held[None]
    return (torch.softmax(groups, 1) * groups.shape[1]).flatten()
