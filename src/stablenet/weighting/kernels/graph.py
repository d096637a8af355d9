"""The whole call as one CUDA graph: some thirty launches become one, which is what a fast step is made of."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import Tensor

from stablenet.replay import Recording

R = TypeVar("R")
Step = Callable[[Tensor, Tensor | None, torch.Generator], R]

MOST_GRAPHS = 16  # shapes and memory positions kept; further ones run launch by launch


class StepGraph(Generic[R]):
    """A step recorded for inputs of one shape. Its results are overwritten by its next replay."""

    def __init__(self, step: Step[R], z: Tensor, labels: Tensor | None) -> None:
        self._generator = torch.Generator(z.device)
        inputs = [z] if labels is None else [z, labels]
        self._recording = Recording(partial(_call, step, self._generator), inputs, generator=self._generator)

    def replay(self, z: Tensor, labels: Tensor | None, seed: int) -> R:
        self._generator.manual_seed(seed)
        return self._recording.replay(z) if labels is None else self._recording.replay(z, labels)


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
            graph = self._graphs[key] or self._record(key, step, z, labels)
            if graph is not None:
                return graph.replay(z, labels, seed), True
        elif len(self._graphs) < MOST_GRAPHS:
            self._graphs[key] = None
        return step(z, labels, torch.Generator(z.device).manual_seed(seed)), False

    def _usable(self, key: Hashable) -> bool:
        return self._possible and key in self._graphs and not torch.cuda.is_current_stream_capturing()

    def _record(self, key: Hashable, step: Step[R], z: Tensor, labels: Tensor | None) -> StepGraph[R] | None:
        try:
            graph = StepGraph(step, z, labels)
        except RuntimeError as error:
            self._possible = False
            warnings.warn(
                f"the weighting could not be recorded as a CUDA graph and runs launch by launch: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        self._graphs[key] = graph
        return graph

    def __reduce__(self) -> tuple[type[GraphCache[R]], tuple[()]]:
        return GraphCache, ()  # a graph belongs to its process and its buffers; a copy records its own
