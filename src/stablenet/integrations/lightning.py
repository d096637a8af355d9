"""Lightning: StableNet in an existing module, for the whole training set or batch by batch, with its diagnostics."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
from torch import Tensor, nn

from stablenet.errors import UserError
from stablenet.integrations.criterion import LOSSES, PerSampleLoss, StableCriterion
from stablenet.integrations.dataset_criterion import DatasetCriterion
from stablenet.integrations.held_out import EpochResult
from stablenet.integrations.passes import SizedDataset


class DatasetCallback(pl.Callback):
    """`recommended` in an unmodified module: its criterion becomes a `DatasetCriterion`, and the best epoch is kept.

    The training loader gives (index, x, y), as `Indexed` does; the module still gets (x, y), and its forward pass gives
    logits.
    taps: paths of modules inside the LightningModule, as "model.layer1".   samples, options: of `DatasetCriterion`.
    attribute: the criterion's name; the module must call it once in each training step.
    criterion: from the beginning of `fit` on.   found: of the latest epoch.   kept: the module's state in the best one,
        with `held_out`. The criterion's state is part of checkpoints.
    """

    def __init__(
        self,
        taps: Sequence[str],
        samples: SizedDataset,
        *,
        num_classes: int,
        attribute: str = "criterion",
        **options: Any,
    ) -> None:
        self._taps, self._samples, self._attribute = tuple(taps), samples, attribute
        self._options = {"num_classes": num_classes, **options}
        self._saved: Mapping[str, Any] | None = None
        self.criterion: DatasetCriterion | None = None
        self.found: EpochResult | None = None
        self.kept: dict[str, Tensor] = {}

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        _require_criterion(pl_module, self._attribute)
        epochs = trainer.max_epochs
        if epochs is None or epochs < 1:
            raise UserError("DatasetCallback lets weights grow over the epochs: give the Trainer max_epochs")
        options = {"epochs": epochs, **self._options}
        self.criterion = DatasetCriterion(pl_module, self._taps, self._samples, **options)
        if self._saved is not None:
            self.criterion.load_state_dict(self._saved)
        print(self.criterion)
        _take_over(pl_module, self._attribute, self.criterion)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert self.criterion is not None
        if self.criterion.held_out is None:
            return
        self.found = self.criterion.judge(pl_module)
        print(self.found)
        pl_module.log("held_out_accuracy", self.found.accuracy)
        if self.found.is_best:
            self.kept = copy.deepcopy(pl_module.state_dict())

    def state_dict(self) -> dict[str, Any]:
        return {} if self.criterion is None else {"criterion": self.criterion.state_dict(), "kept": self.kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved, self.kept = state_dict.get("criterion"), state_dict.get("kept", {})


def _take_over(module: pl.LightningModule, attribute: str, criterion: DatasetCriterion) -> None:
    """Let the module's training step see batches without their index, and its criterion know the index."""
    plain, step = getattr(module, attribute), module.training_step
    index: list[Tensor] = []

    def compute(outputs: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = criterion(outputs, targets, index[0]) if index else plain(outputs, targets)
        return loss

    def train(batch: Any, *rest: Any) -> Any:
        index[:] = [batch[0]]
        try:
            return step(tuple(batch[1:]), *rest)
        finally:
            index.clear()

    delattr(module, attribute)
    object.__setattr__(module, attribute, compute)  # no part of the module: its checkpoints stay as they were
    object.__setattr__(module, "training_step", train)


def _require_criterion(module: pl.LightningModule, attribute: str) -> nn.Module:
    found = getattr(module, attribute, None)
    if not isinstance(found, nn.Module):
        raise UserError(
            f"{type(module).__name__} has no criterion {attribute!r}: give its name with attribute=…, "
            "or build the criterion in the module itself"
        )
    return found


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
        found = _require_criterion(pl_module, self._attribute)
        if isinstance(found, StableCriterion):
            return
        loss = fitting_loss(found) if self._loss is None else self._loss
        criterion = StableCriterion(pl_module, self._taps, loss=loss, preset=self._preset, **self._overrides)
        setattr(pl_module, self._attribute, criterion)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step % self._log_every:
            return
        diagnostics = getattr(pl_module, self._attribute).weighting.diagnostics
        for name in ("dependence_before", "dependence_after", "ess_ratio"):
            if name in diagnostics:
                pl_module.log(f"weights/{name}", diagnostics[name])


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
