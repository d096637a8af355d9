"""The fast path on CUDA: the whole solve in three fused kernels, without the host waiting for anything.

This file decides which path a problem takes. In reading order: `fused_solve` (sizes, buffers, launches),
`prepare_programs` (Triton: Fourier features and the matrices K and M) and `solve_program` (Triton: all inner steps in
one launch).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor

from stablenet.errors import UserError
from stablenet.replay import Recording, record
from stablenet.weighting.settings import WeightingSettings
from stablenet.weighting.solver import Solution

Path = Literal["fused", "eager"]

# The solve keeps vectors of n in the registers of every program; beyond this many rows they would spill.
MOST_ROWS = 2048


def choose_path(num_rows: int, device: torch.device, settings: WeightingSettings) -> Path:
    """How a problem of that many rows is solved: fused wherever that is possible, unless `method` says otherwise."""
    reason = why_not_fused(num_rows, device, settings)
    if settings.method == "fused" and reason:
        raise UserError(f"method='fused' is not possible here: {reason}; use method='auto'")
    return "fused" if settings.method in ("auto", "fused") and not reason else "eager"


def why_not_fused(num_rows: int, device: torch.device, settings: WeightingSettings) -> str:
    """The first reason against the fused path, or an empty string."""
    if reason := why_never_fused(settings):
        return reason
    if num_rows > MOST_ROWS:
        return f"{num_rows} rows are joined, and it takes at most {MOST_ROWS}"
    if device.type != "cuda":
        return f"the features are on the {device.type} device, and it runs on CUDA"
    if not triton_works():
        return "it needs Triton 3.3 or newer"
    return ""


def why_never_fused(settings: WeightingSettings) -> str:
    """The first setting against the fused path, or an empty string."""
    unsupported = {
        "redraw='step'": settings.redraw == "step",
        "fourier='cosine-sine'": settings.fourier == "cosine-sine",
        "scaling='phase'": settings.scaling == "phase",
        "bandwidth='median'": settings.bandwidth == "median",
        "pairing='same'": settings.pairing == "same" and settings.pairs != "labels",
        "objective='scaled-sum'": settings.objective == "scaled-sum",
        "objective='share'": settings.objective == "share",
        "logits='joint'": settings.logits == "joint",
        "keep='last'": settings.keep == "last",
        "a tolerance": settings.tolerance is not None,
    }
    for name, present in unsupported.items():
        if present:
            return f"{name} has no fused kernel"
    return ""


def may_record(path: Path, num_rows: int, device: torch.device, settings: WeightingSettings) -> bool:
    """Whether a call is device work alone, which a CUDA graph can replay, and small enough to gain by it."""
    eager = device.type == "cuda" and _plain(settings) and num_rows <= MOST_ROWS
    return settings.graphs and (path == "fused" or eager)


def decides_on_device(settings: WeightingSettings) -> bool:
    """Whether a call on CUDA with at most `MOST_ROWS` rows is device work alone, on whichever path."""
    fused = settings.method in ("auto", "fused") and not why_never_fused(settings) and triton_works()
    return settings.graphs and (fused or _plain(settings))


def _plain(settings: WeightingSettings) -> bool:
    """Whether the unfused path is device work alone: not where the host looks at a tolerance, counts labels, or brings
    the points of a median.
    """
    return settings.pairs == "features" and settings.tolerance is None and settings.bandwidth != "median"


def triton_works() -> bool:
    """Whether a Triton with cooperative launches is installed."""
    try:
        import triton
    except ImportError:
        return False
    return tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 3)


def solve_fused(
    rows: Tensor,
    labels: Tensor | None,
    fixed: Tensor,
    size: int,
    settings: WeightingSettings,
    generator: torch.Generator,
) -> Solution:
    """`problem.solve_problem`, fused.   rows: (n, m), the batch last."""
    from stablenet.weighting.kernels.fused_solve import launch_solve

    return launch_solve(rows, labels, fixed, size, settings, generator)


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
