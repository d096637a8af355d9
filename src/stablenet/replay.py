"""Device work recorded once as a CUDA graph and replayed: one launch instead of hundreds.

A module that counts or draws seeds on the host is a `HostSide`: a recording holds its device work alone, and its host's
part is done around every replay.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

R = TypeVar("R")


class HostSide(ABC):
    """A module whose step has a part on the host, which a recording of its device work leaves out.

    draws: set while a step must do its device work alone, with the random numbers of this generator.
    """

    draws: torch.Generator | None = None

    @abstractmethod
    def recording_key(self, size: int) -> Hashable | None:
        """What the device work of a step on `size` samples depends on: same key, same work. None: never recorded."""

    @abstractmethod
    def before_replay(self, draws: torch.Generator) -> None:
        """What the host does before the device work of a step: it seeds the generator that the work draws from."""

    @abstractmethod
    def after_replay(self, size: int) -> None:
        """What the host does after the device work of a step on `size` samples, for example counting it."""


@contextmanager
def device_work(sides: Mapping[HostSide, torch.Generator]) -> Iterator[None]:
    """Within the block these modules do their device work alone, each with its generator."""
    for side, generator in sides.items():
        side.draws = generator
    try:
        yield
    finally:
        for side in sides:
            side.draws = None


class Recording(Generic[R]):
    """work(*inputs) recorded for inputs of these shapes; it must not depend on decisions of the host.

    Recording computes nothing; a replay does. The result of work is overwritten by the next replay. Numbers drawn from
    the device's default generator, and from `generators`, follow the seeds of these generators at replay.
    optimizers: those that work steps after its backward pass; they must be fused and have taken a step.
    """

    def __init__(
        self,
        work: Callable[..., R],
        inputs: Sequence[Tensor],
        *,
        generators: Sequence[torch.Generator] = (),
        optimizers: Sequence[torch.optim.Optimizer] = (),
    ) -> None:
        with torch.cuda.device(inputs[0].device):
            self._inputs = [tensor.detach().clone() for tensor in inputs]
            self._graph = torch.cuda.CUDAGraph()
            for generator in generators:
                self._graph.register_generator_state(generator)
            # Other threads (data loading, writing, collectives) keep using CUDA during capture, hence thread_local.
            capture = torch.cuda.graph(self._graph, capture_error_mode="thread_local")
            with quiet_capture() if optimizers else nullcontext(), _capturable(optimizers), capture:
                self._result = work(*self._inputs)

    def replay(self, *inputs: Tensor) -> R:
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given)
        self._graph.replay()
        return self._result


def record(what: str, work: Callable[..., R], inputs: Sequence[Tensor], **options: Any) -> Recording[R] | None:
    """Record work; if that fails, warn, naming `what`, and return None."""
    try:
        return Recording(work, inputs, **options)
    except RuntimeError as error:
        # The capture's error only reports an earlier one, its context. Keeping either would keep the recording alive.
        reason = f"{error.__context__ or error}"
    message = f"{what} could not be captured as a CUDA graph and will run without one: {reason}"
    warnings.warn(message, RuntimeWarning, stacklevel=3)
    return None


@contextmanager
def quiet_capture() -> Iterator[None]:
    """Silence torch's warnings that a captured backward pass runs on another stream and in another thread."""
    mismatch = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
    if mismatch is not None:
        mismatch(False)  # stays off: otherwise every graphed step would warn
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Attempting to run cuBLAS, but there was no current CUDA context")
        warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream does not match")
        yield


@contextmanager
def _capturable(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
    """Mark optimizers such as Adam capturable: when fused, they count their steps on the device."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups if "capturable" in group]
    before = [group["capturable"] for group in groups]
    for group in groups:
        group["capturable"] = True
    try:
        yield
    finally:
        for group, value in zip(groups, before, strict=True):
            group["capturable"] = value
