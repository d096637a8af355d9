"""Figures of predictions on a part, over all processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from stablenet.data.manifest import Manifest
from stablenet.data.pipeline import Batch, Loader
from stablenet.metrics import GroupCounts

Predict = Callable[[Batch], Tensor]  # a batch to logits (b, classes)


@torch.no_grad()
def evaluate_loader(
    predict: Predict, loader: Loader, manifest: Manifest, fabric: Any, weights: Tensor | None = None
) -> dict[str, Any]:
    """Figures over all samples of the loader.   weights: (n,) of the part's rows, see `GroupCounts`."""
    device = loader.device
    counts = GroupCounts(len(manifest.domains), len(manifest.classes), device)
    with fabric.autocast():
        for batch in loader.epoch(0):
            if len(batch.y):  # a short last batch may leave a process without a sample
                counts.add(predict(batch), batch.y, batch.domain, None if weights is None else weights[batch.index])
    if dist.is_available() and dist.is_initialized():
        for tensor in counts.tensors():
            dist.all_reduce(tensor)
    return counts.figures(manifest.domains, manifest.classes)
