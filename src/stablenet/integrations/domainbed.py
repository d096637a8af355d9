"""StableNet as DomainBed calls its algorithms: `Algorithm(input_shape, num_classes, num_domains, hparams)`.

In a copy of DomainBed's training script:

    from domainbed import algorithms
    from stablenet.integrations.domainbed import DomainBedStableNet
    algorithms.StableNet = DomainBedStableNet
    algorithms.ALGORITHMS.append("StableNet")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stablenet.errors import UserError
from stablenet.integrations.criterion import classify
from stablenet.models import build_network
from stablenet.weighting import StableWeighting, recommended

SMALL = 28  # side up to which the paper's CNN is taken


class DomainBedStableNet(nn.Module):
    """Weighted cross-entropy over the joined minibatches of all training domains.

    DomainBed passes minibatches without sample indices, so the weights are those of batches: `recommended` means its
    form for batches (`recommended.BATCH`), without offsets.
    hparams, DomainBed's: lr, weight_decay, resnet18 (bool), and resnet_pretrained (bool, taken for False).
    hparams of its own, all optional: stablenet_preset ("recommended"), stablenet_taps (list of taps),
    stablenet_backbone (a name for `build_network`), stablenet_overrides (fields of `WeightingSettings`).
    """

    def __init__(
        self, input_shape: Sequence[int], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.hparams = dict(hparams)
        self.network = build_network(
            choose_backbone(input_shape, hparams),
            num_classes,
            pretrained="imagenet" if hparams.get("resnet_pretrained") else "",
        )
        self.network.tap(hparams.get("stablenet_taps", recommended.TAPS), detach=True)
        preset = hparams.get("stablenet_preset", recommended.NAME)
        self.weighting = StableWeighting(preset, num_classes=num_classes, **hparams.get("stablenet_overrides", {}))
        self.optimizer = torch.optim.Adam(
            self.network.parameters(), lr=hparams["lr"], weight_decay=hparams["weight_decay"]
        )

    def update(
        self, minibatches: Sequence[tuple[Tensor, Tensor]], unlabeled: Sequence[Tensor] | None = None
    ) -> dict[str, float]:
        """One step.   minibatches: (x, y) of every training domain.   unlabeled: not used."""
        x = torch.cat([x for x, _ in minibatches])
        y = torch.cat([y for _, y in minibatches])
        logits, *features = self.network.forward_taps(x)
        loss = (self.weighting(self.network.name_taps(features), labels=y) * classify(logits, y)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.item()}

    def predict(self, x: Tensor) -> Tensor:
        """Images (B, 3, s, s) to logits (B, classes)."""
        logits: Tensor = self.network(x)
        return logits


StableNet = DomainBedStableNet  # the name under which DomainBed finds it, as releases before 0.2 had it


def choose_backbone(input_shape: Sequence[int], hparams: Mapping[str, Any]) -> str:
    """The paper's CNN for small images, else the ResNet that DomainBed's own algorithms would take."""
    if "stablenet_backbone" in hparams:
        return str(hparams["stablenet_backbone"])
    channels, side = input_shape[0], input_shape[-1]
    if channels != 3:
        raise UserError(
            f"images of shape {tuple(input_shape)} have {channels} channels, the networks here take 3: name one of "
            "your own with the hyper-parameter stablenet_backbone, as 'package.module:name'"
        )
    if side <= SMALL:
        return "paper-cnn"
    return "resnet18" if hparams.get("resnet18", True) else "resnet50"
