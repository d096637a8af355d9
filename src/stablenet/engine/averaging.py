"""Weight averaging beside any method (SWAD): what steps leave behind is averaged, what they do stays the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm

from stablenet.data.pipeline import Batch
from stablenet.engine.devices import seed_generators
from stablenet.engine.session import Session
from stablenet.engine.window import Mean, Segment, Window, name_tensors, place_tensors
from stablenet.errors import UserError
from stablenet.models import Network


class Averaging:
    """The mean of a method's parameters over every step inside SWAD's window (see `Window`).

    θ_SWAD = 1/(t_e − t_s + 1) Σ_{t_s ≤ t ≤ t_e} θ_t. Every `train.swad.every` steps, and after the last one, the source
    validation loss is taken, and the window opens, goes on or ends. Steps are not changed by it.

    Departures from its paper: the learning rate follows the run's schedule, and where the backbone has BatchNorm, whose
    statistics the paper freezes, they are taken anew for the averaged weights in one pass over the training images.
    """

    def __init__(self, session: Session) -> None:
        if session.validation is None:
            raise UserError(
                "train.averaging='swad' follows the loss on source validation, and the split has no validation part: "
                "give it one (data.parameters.validation), or set train.averaging=none"
            )
        self._session = session
        self._every = session.config.train.swad.every
        self._segment: Mean | None = None
        self._window = Window(session.config.train.swad)

    def take(self, step: int) -> bool:
        """Take in the weights after step `step` (from 1); True when the validation loss is wanted now."""
        if self._window.ended or not self._session.algorithm.trains_predictor():
            return False
        parameters = self._parameters()
        if self._segment is None:
            self._segment = Mean.start(step, parameters)
        else:
            self._segment.add(step, parameters)
        return step % self._every == 0 or step == self._session.total_steps

    def judge(self, epoch: int, loss: float) -> dict[str, Any]:
        """Close the segment with its validation loss; what to record of it. epoch: the one in work, from 1."""
        assert self._segment is not None
        step = self._segment.last
        if not math.isfinite(loss):
            raise UserError(f"the validation loss at step {step} is {loss}: lower train.learning_rate")
        self._window.close(Segment(self._segment, loss))
        self._segment = None
        kept = self._window.kept
        return {
            "kind": "averaging",
            "step": step,
            "epoch": epoch,
            "validation_loss": loss,
            "threshold": self._window.threshold,
            "kept": [kept.first, kept.last] if kept else None,
            "ended": self._window.ended,
        }

    def install(self, step: int) -> tuple[Network, dict[str, Any]]:
        """Put the averaged weights in the place of the trained ones, as the run's last act.

        step: a number that no step of the run has, for the random numbers of the pass over training images.
        Returns the predictor in eval mode, and what to record of the window.
        """
        session, mean = self._session, self._result()
        with torch.no_grad():
            for parameter, average in zip(self._parameters(), mean.tensors, strict=True):
                parameter.copy_(average)
        seed_generators(session.device, session.config.seed, session.fabric.global_rank, step)
        predictor = session.algorithm.predictor()
        estimate_statistics(predictor, session.training.epoch(0), session.fabric)
        told = {"first_step": mean.first, "last_step": mean.last, "converged": self._window.kept is not None}
        return predictor.eval(), told

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """For a checkpoint: tensors by name, and plain values."""
        tensors, plain = self._window.state()
        plain["segment"] = None
        if self._segment is not None:
            tensors |= name_tensors("segment", self._segment.tensors)
            plain["segment"] = [self._segment.first, self._segment.last]
        return tensors, plain

    def restore(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        parameters = [parameter.detach() for parameter in self._parameters()]
        self._window.restore(tensors, plain, parameters)
        if plain["segment"] is not None:
            first, last = plain["segment"]
            self._segment = Mean(place_tensors("segment", tensors, parameters), first, last)

    def _parameters(self) -> list[nn.Parameter]:
        """The method's, not the predictor's: that may be a copy. Frozen ones are their own mean."""
        return list(self._session.algorithm.parameters())

    def _result(self) -> Mean:
        if self._window.kept is None and not self._window.open:
            name = self._session.config.method.name
            raise UserError(f"{name} trained its predictor in no step: there is nothing to average; train longer")
        return self._window.result()


def make_averaging(session: Session) -> Averaging | None:
    return Averaging(session) if session.config.train.averaging == "swad" else None


@torch.no_grad()
def estimate_statistics(model: nn.Module, batches: Iterator[Batch], fabric: Any) -> None:
    """BatchNorm's running means and variances anew: plain means over the batches, and over processes.

    As in training, dropout included. Layers that are in eval mode, where a method froze them, keep theirs.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm) and layer.training]
    layers = [layer for layer in layers if layer.running_mean is not None]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # torch's word for a plain mean
    with fabric.autocast():
        for batch in batches:
            if len(batch.y):  # a short last batch may leave a process without a sample
                model(batch.x)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
        if fabric.world_size > 1:
            for statistic in (layer.running_mean, layer.running_var):
                assert statistic is not None
                dist.all_reduce(statistic)
                statistic /= fabric.world_size
