"""The whole call as one CUDA graph: tens of launches, of an unfused call hundreds, become one."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import Tensor

from stablenet.replay import Recording, record

R = TypeVar("R")
Step = Callable[[Tensor, Tensor | None, torch.Generator], R]

MOST_GRAPHS = 16  # shapes and memory positions kept; further ones run launch by launch


class StepGraph(Generic[R]):
    """A step recorded for inputs of one shape. Its results are overwritten by its next replay."""

    def __init__(self, recording: Recording[R], generator: torch.Generator) -> None:
        self._recording, self._generator = recording, generator

    def replay(self, z: Tensor, labels: Tensor | None, seed: int) -> R:
        self._generator.manual_seed(seed)
        return self._recording.replay(z) if labels is None else self._recording.replay(z, labels)


def record_step(step: Step[R], z: Tensor, labels: Tensor | None) -> StepGraph[R] | None:
    """The step as a graph; None, after a warning, where that is not possible."""
    generator = torch.Generator(z.device)
    inputs = [z] if labels is None else [z, labels]
    recording = record("the weighting", partial(_call, step, generator), inputs, generators=[generator])
    return None if recording is None else StepGraph(recording, generator)


def _call(step: Step[R], generator: torch.Generator, z: Tensor, labels: Tensor | None = None) -> R:
    return step(z, labels, generator)


class GraphCache(Generic[R]):
    """Graphs by key. A key's first step runs launch by launch (kernels compile then), its second is recorded."""

    def __init__(self) -> None:
        self._graphs: dict[Hashable, StepGraph[R] | None] = {}
        self._possible = True

    def run(self, key: Hashable, step: Step[R], z: Tensor, labels: Tensor | None, seed: int) -> tuple[R, bool]:
        """The step's result, and whether a graph computed it."""
        if self._usable(key):
            self._graphs[key] = graph = self._graphs[key] or record_step(step, z, labels)
            self._possible = graph is not None
            if graph is not None:
                return graph.replay(z, labels, seed), True
        elif len(self._graphs) < MOST_GRAPHS:
            self._graphs[key] = None
        return step(z, labels, torch.Generator(z.device).manual_seed(seed)), False

    def _usable(self, key: Hashable) -> bool:
        return self._possible and key in self._graphs and not torch.cuda.is_current_stream_capturing()

    def __reduce__(self) -> tuple[type[GraphCache[R]], tuple[()]]:
        return GraphCache, ()  # a graph belongs to its process and its buffers; a copy records its own
