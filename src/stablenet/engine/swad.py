"""SWAD (Cha et al., 2021): weights averaged over a window of steps, chosen by the source validation loss.

Works with any method: the weights after each step are averaged, the steps themselves are unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm

from stablenet.data.loader import Batch
from stablenet.engine.config import SwadConfig
from stablenet.engine.session import Session, seed_generators
from stablenet.errors import UserError
from stablenet.models import Network


class Averaging:
    """The mean of a method's parameters over all steps inside SWAD's window (see `Window`).

    θ_SWAD = 1/(t_e − t_s + 1) Σ_{t_s ≤ t ≤ t_e} θ_t. Every `train.swad.every` steps, and after the last one, the source
    validation loss is computed, and the window opens, continues or ends. Training steps are unchanged.

    Deviations from its paper: the learning rate follows the run's schedule, and the statistics of BatchNorm, which the
    paper freezes, are estimated for the averaged weights in one pass over the training images.
    """

    def __init__(self, session: Session) -> None:
        if session.validation is None:
            raise UserError(
                "train.averaging='swad' needs the source validation loss, but the split has no validation part: "
                "add one (data.parameters.validation), or set train.averaging=none"
            )
        self._session = session
        self._every = session.config.train.swad.every
        self._segment: Mean | None = None
        self._window = Window(session.config.train.swad)

    def take(self, step: int) -> bool:
        """Add the weights after step `step` (from 1); return whether the validation loss is needed now."""
        if self._window.ended or not self._session.algorithm.trains_predictor():
            return False
        parameters = self._parameters()
        if self._segment is None:
            self._segment = Mean.start(step, parameters)
        else:
            self._segment.add(step, parameters)
        return step % self._every == 0 or step == self._session.total_steps

    def judge(self, epoch: int, loss: float) -> dict[str, Any]:
        """Close the segment with its validation loss; return its record. epoch: the current one, from 1."""
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
        """Replace the trained weights by the averaged ones, at the end of the run.

        step: a number not used by any step, for the random numbers of the pass over the training images.
        Returns the predictor in eval mode, and the window's fields for the record.
        """
        session, mean = self._session, self._result()
        with torch.no_grad():
            for parameter, average in zip(self._parameters(), mean.tensors, strict=True):
                parameter.copy_(average)
        seed_generators(session.device, session.config.seed, session.fabric.global_rank, step)
        predictor = session.algorithm.predictor()
        estimate_statistics(predictor, session.batches(0), session.fabric)
        session.algorithm.refit(session.training_set)
        span = {"first_step": mean.first, "last_step": mean.last, "converged": self._window.kept is not None}
        return predictor.eval(), span

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """State for a checkpoint: tensors by name, and plain values."""
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
        """Parameters of the method, not of the predictor, which may be a copy. Frozen ones equal their mean."""
        return list(self._session.algorithm.parameters())

    def _result(self) -> Mean:
        if self._window.kept is None and not self._window.open:
            name = self._session.config.method.name
            raise UserError(f"{name} never trained its predictor, so there is nothing to average: train longer")
        return self._window.result()


def make_averaging(session: Session) -> Averaging | None:
    return Averaging(session) if session.config.train.averaging == "swad" else None


@torch.no_grad()
def estimate_statistics(model: nn.Module, batches: Iterator[Batch], fabric: Any) -> None:
    """Re-estimate BatchNorm's running statistics: plain means over the batches and processes.

    The model runs as in training, with dropout. Layers in eval mode, frozen by a method, keep their statistics.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm) and layer.training]
    layers = [layer for layer in layers if layer.running_mean is not None]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain mean, in torch
    with fabric.autocast():
        for batch in batches:
            if len(batch.y):  # an incomplete last batch may leave a process without samples
                model(batch.x)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
        if fabric.world_size > 1:
            for statistic in (layer.running_mean, layer.running_var):
                assert statistic is not None
                dist.all_reduce(statistic)
                statistic /= fabric.world_size


@dataclass
class Mean:
    """The mean of tensors over all steps first..last (from 1)."""

    tensors: list[Tensor]
    first: int
    last: int

    @classmethod
    @torch.no_grad()
    def start(cls, step: int, tensors: Iterable[Tensor]) -> Mean:
        return cls([tensor.detach().clone() for tensor in tensors], step, step)

    @property
    def steps(self) -> int:
        return self.last - self.first + 1

    @torch.no_grad()
    def add(self, step: int, tensors: Iterable[Tensor]) -> None:
        """Add the next step."""
        self.join(Mean([tensor.detach() for tensor in tensors], step, step))

    @torch.no_grad()
    def join(self, later: Mean) -> None:
        """Add the mean over the next steps."""
        assert later.first == self.last + 1, f"step {self.last} is followed by step {later.first}"
        # A running mean rather than a sum, which would lose precision over thousands of steps.
        torch._foreach_lerp_(self.tensors, later.tensors, later.steps / (self.steps + later.steps))
        self.last = later.last


@dataclass
class Segment:
    """The steps between two evaluations, and the validation loss at their end."""

    mean: Mean
    loss: float


class Window:
    r"""With E_k the loss at the end of segment k, N_s = n_converge, N_e = n_tolerance, r = 1 + tolerance_ratio:

    start   the first segment s with E_s = min(E_s, …, E_{s+N_s-1}); the threshold is l = r/N_s Σ E_s … E_{s+N_s-1}
    end     before the first N_e segments in a row that all have E > l, or before those that end the run with E > l

    As in the published code, the segment that ends at the start belongs to the window, and a run without a start gives
    its last segment. Only undecided segments are stored: of the candidates for the start only the earliest matters,
    because a loss below its own is also below those of the later ones.

    kept: mean over the segments known to be in the window.   open: undecided segments.
    """

    def __init__(self, settings: SwadConfig) -> None:
        self._settings = settings
        self.kept: Mean | None = None
        self.open: list[Segment] = []
        self.threshold: float | None = None
        self.ended = False

    def close(self, segment: Segment) -> None:
        """Add the next segment."""
        if self.threshold is None and self.open and segment.loss < self.open[0].loss:
            self.open = []
        self.open.append(segment)
        if self.threshold is None and len(self.open) == self._settings.n_converge:
            losses = [each.loss for each in self.open]
            self.threshold = (1 + self._settings.tolerance_ratio) * sum(losses) / len(losses)
        if self.threshold is not None:
            self._settle(self.threshold)

    def result(self) -> Mean:
        """The mean over the window."""
        return self.open[-1].mean if self.kept is None else self.kept

    def _settle(self, threshold: float) -> None:
        """Move all segments up to the last loss within the threshold to the window."""
        within = [number for number, segment in enumerate(self.open) if segment.loss <= threshold]
        sure = self.open[: within[-1] + 1] if within else []
        for segment in sure:
            if self.kept is None:
                self.kept = segment.mean
            else:
                self.kept.join(segment.mean)
        del self.open[: len(sure)]
        if len(self.open) == self._settings.n_tolerance:
            self.ended, self.open = True, []

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """State for a checkpoint: tensors by name, and plain values."""
        means = {f"open/{number}": segment.mean for number, segment in enumerate(self.open)}
        means |= {"kept": self.kept} if self.kept is not None else {}
        tensors: dict[str, Tensor] = {}
        spans = {}
        for name, mean in means.items():
            tensors |= name_tensors(name, mean.tensors)
            spans[name] = [mean.first, mean.last]
        losses = [segment.loss for segment in self.open]
        return tensors, {"spans": spans, "losses": losses, "threshold": self.threshold, "ended": self.ended}

    def restore(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any], like: Sequence[Tensor]) -> None:
        """The inverse of `state`. like: tensors with the shapes, types and devices of the means."""
        means = {
            name: Mean(place_tensors(name, tensors, like), first, last)
            for name, (first, last) in plain["spans"].items()
        }
        self.kept = means.get("kept")
        self.open = [Segment(means[f"open/{number}"], loss) for number, loss in enumerate(plain["losses"])]
        self.threshold, self.ended = plain["threshold"], plain["ended"]


def name_tensors(name: str, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    return {f"{name}/{number}": tensor for number, tensor in enumerate(tensors)}


def place_tensors(name: str, tensors: Mapping[str, Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    """The inverse of `name_tensors`; restores device and memory format, which files do not have."""
    return [torch.empty_like(one).copy_(tensors[f"{name}/{number}"]) for number, one in enumerate(like)]
