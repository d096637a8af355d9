"""Figures of a model on a part, over all processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from stablenet.data.manifest import Manifest
from stablenet.data.pipeline import Loader
from stablenet.evaluation.metrics import Tally


@torch.no_grad()
def evaluate_loader(model: nn.Module, loader: Loader, manifest: Manifest, fabric: Any) -> dict[str, Any]:
    """Figures over all samples of the loader; the model is in eval mode meanwhile."""
    device = loader.device
    tally = Tally(len(manifest.domains), len(manifest.classes), device)
    training = model.training
    model.eval()
    with fabric.autocast():
        for batch in loader.epoch(0):
            if len(batch.y):  # a short last batch may leave a process without a sample
                tally.add(model(batch.x), batch.y, batch.domain)
    model.train(training)
    if dist.is_available() and dist.is_initialized():
        for tensor in tally.tensors():
            dist.all_reduce(tensor)
    return tally.figures(manifest.domains, manifest.classes)
