"""Lightning: add the weighting to an existing module, and log its diagnostics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
from torch import nn

from stablenet.errors import UserError
from stablenet.integrations.criterion import LOSSES, PerSampleLoss, StableCriterion


class StableCallback(pl.Callback):
    """Replaces a module's criterion by a `StableCriterion`, and logs its diagnostics.

    taps: paths of modules inside the LightningModule, as "model.layer1".
    attribute: the criterion's name; the module must call it once for each of its forward passes.
    loss: as `StableCriterion` takes it, or None for the one that fits the criterion it replaces.
    log_every: steps between two logged diagnostics; reading them makes the host wait for the device.
    The memory becomes part of the module, and so of its checkpoints.
    """

    def __init__(
        self,
        taps: Sequence[str],
        *,
        attribute: str = "criterion",
        loss: str | PerSampleLoss | None = None,
        preset: str = "recommended",
        log_every: int = 50,
        **overrides: Any,
    ) -> None:
        self._taps, self._attribute, self._loss = tuple(taps), attribute, loss
        self._preset, self._overrides, self._log_every = preset, overrides, log_every

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        found = getattr(pl_module, self._attribute, None)
        if isinstance(found, StableCriterion):
            return
        if not isinstance(found, nn.Module):
            raise UserError(
                f"{type(pl_module).__name__} has no criterion {self._attribute!r}: give its name with attribute=…, "
                "or build a StableCriterion in the module itself"
            )
        loss = fitting_loss(found) if self._loss is None else self._loss
        criterion = StableCriterion(pl_module, self._taps, loss=loss, preset=self._preset, **self._overrides)
        setattr(pl_module, self._attribute, criterion)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step % self._log_every:
            return
        told = getattr(pl_module, self._attribute).weighting.diagnostics
        for name in ("dependence_before", "dependence_after", "ess_ratio"):
            if name in told:
                pl_module.log(f"weights/{name}", told[name])


def fitting_loss(criterion: nn.Module) -> PerSampleLoss:
    """The per-sample loss that corresponds to a plain criterion; one with settings of its own must be given."""
    kinds = {
        nn.CrossEntropyLoss: "classification",
        nn.MSELoss: "regression",
        nn.BCEWithLogitsLoss: "multi-label",
    }
    plain = getattr(criterion, "label_smoothing", 0) == 0 and getattr(criterion, "ignore_index", -100) == -100
    weighted = any(value is not None for value in criterion.state_dict().values())
    if type(criterion) not in kinds or not plain or weighted:
        raise UserError(
            f"{criterion} has no per-sample form here: give StableCallback loss='classification', 'regression', "
            "'multi-label' or a PerSampleLoss of your own"
        )
    return LOSSES[kinds[type(criterion)]]
