"""One update a batch: what the engine offers to a method's step, and whole steps as replays."""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from stablenet.algorithms import Algorithm, StepOutput
from stablenet.data.pipeline import Batch
from stablenet.replay import Recording


class EngineStepper:
    """Loss through Fabric; one backward pass and one optimiser step a batch."""

    def __init__(
        self, algorithm: Algorithm[Any], optimizer: torch.optim.Optimizer, fabric: Any, batch_size: int
    ) -> None:
        wrapped = fabric.setup_module(algorithm)
        # Fabric's wrapper joins gradients, but looks through all it is given, which a small network's step would feel.
        self._module = wrapped if fabric.world_size > 1 else algorithm
        self._optimizer, self._fabric = optimizer, fabric
        self._channels_last = fabric.device.type == "cuda"
        # Looking costs nothing here; elsewhere it means waiting for the device, or for other processes.
        self._guarded = fabric.device.type == "cpu" and fabric.world_size == 1
        self.joined = batch_size  # samples of this step in all processes together
        self.latest = torch.zeros(())  # the reduced loss of the latest descent, of this process

    def loss(self, batch: Batch) -> StepOutput:
        x = batch.x.contiguous(memory_format=torch.channels_last) if self._channels_last else batch.x
        with self._fabric.autocast():
            per_sample, weights, diagnostics = self._module(x, batch.y, batch.domain, batch.index)
        return StepOutput(per_sample, weights, diagnostics)

    def descend(self, output: StepOutput) -> None:
        loss = self._reduce(output)
        self.latest = loss.detach()
        if self._guarded and not torch.isfinite(self.latest):
            return  # no step on it: the loop stops the run when it sees this loss
        self._optimizer.zero_grad(set_to_none=True)
        self._fabric.backward(loss)
        self._optimizer.step()

    def _reduce(self, output: StepOutput) -> Tensor:
        """The weighted mean over the joined batch; gradients are averaged over processes, hence their number."""
        losses = output.per_sample_loss
        if output.weights is not None:
            losses = output.weights * losses
        if self._fabric.world_size == 1:
            return losses.mean()
        processes: int = self._fabric.world_size
        return losses.sum() * (processes / self.joined)


class Stepping:
    """Steps as they come."""

    def __init__(self, algorithm: Algorithm[Any], stepper: EngineStepper) -> None:
        self._algorithm, self._stepper = algorithm, stepper

    def start_epoch(self) -> None:
        """To be called before the first step of an epoch, also where a run goes on inside it."""

    def take(self, batch: Batch) -> StepOutput:
        """Train on a batch. The output's tensors hold until the next step."""
        return self._algorithm.step(batch, self._stepper)


class ReplayedStepping(Stepping):
    """Passes, loss and optimiser of a step as one CUDA graph, which spares a small network most of its time.

    The first step of an epoch runs as it comes, the second is recorded. Recorded anew in every epoch, because between
    two of them a method may change what its steps work on, and for every rate and shape, which a recording holds.
    """

    def __init__(self, algorithm: Algorithm[Any], stepper: EngineStepper, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(algorithm, stepper)
        self._optimizer = optimizer
        self._possible = True
        self.start_epoch()

    def start_epoch(self) -> None:
        self._key: Hashable = None
        self._recording: Recording[tuple[StepOutput, Tensor]] | None = None

    def take(self, batch: Batch) -> StepOutput:
        key = (batch.x.shape, *(group["lr"] for group in self._optimizer.param_groups))
        if not self._possible or key != self._key:
            self._recording, self._key = None, key
            return super().take(batch)
        inputs = (batch.x, batch.y, batch.domain, batch.index)
        if self._recording is None:
            try:
                self._recording = Recording(self._work, inputs, optimizers=[self._optimizer])
            except RuntimeError as error:
                self._possible = False
                warnings.warn(
                    f"steps could not be recorded as a CUDA graph and run launch by launch: {error}", stacklevel=2
                )
                return super().take(batch)
        output, self._stepper.latest = self._recording.replay(*inputs)
        return output

    def _work(self, x: Tensor, y: Tensor, domain: Tensor, index: Tensor) -> tuple[StepOutput, Tensor]:
        output = super().take(Batch(x, y, domain, index))
        told = {name: value.detach() for name, value in output.diagnostics.items()}
        return StepOutput(output.per_sample_loss.detach(), output.weights, told), self._stepper.latest
