"""SWAD's window: which steps' weights are averaged, decided by the source validation loss (Cha et al., 2021)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stablenet.engine.config import SwadConfig


@dataclass
class Mean:
    """The mean of some tensors over the steps first..last (from 1, all of them)."""

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
        """Take in the step that follows."""
        self.join(Mean([tensor.detach() for tensor in tensors], step, step))

    @torch.no_grad()
    def join(self, later: Mean) -> None:
        """Take in the steps that follow."""
        assert later.first == self.last + 1, f"step {self.last} is followed by step {later.first}"
        # A running mean, not a sum: it keeps its precision over thousands of steps.
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

    As in the published code the segment that ends at the start belongs to the window, and a run in which no start was
    found gives its last segment. All that is ever kept are the segments whose fate is open: of the candidates for
    the start only the earliest counts, because a loss below its own is below those of the later ones too.

    kept: mean over the segments that belong to the window for certain.   open: those that may still.
    """

    def __init__(self, settings: SwadConfig) -> None:
        self._settings = settings
        self.kept: Mean | None = None
        self.open: list[Segment] = []
        self.threshold: float | None = None
        self.ended = False

    def close(self, segment: Segment) -> None:
        """Take in the segment that follows."""
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
        """Whatever lies before a loss within the threshold belongs to the window."""
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
        """For a checkpoint: tensors by name, and plain values."""
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
        """The inverse of `state`. like: tensors with the shapes, types and places the means have."""
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
    """The inverse of `name_tensors`; files hold plain rows on the CPU, parameters may lie otherwise."""
    return [torch.empty_like(one).copy_(tensors[f"{name}/{number}"]) for number, one in enumerate(like)]
