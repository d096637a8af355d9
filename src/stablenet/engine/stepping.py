"""One update a batch: what the engine offers to a method's step, and whole steps as replays."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from stablenet.algorithms import Algorithm, StepOutput
from stablenet.data.pipeline import Batch
from stablenet.replay import Recording, record


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
    """Steps as they come. replayed: how many of this epoch were replays."""

    def __init__(self, algorithm: Algorithm[Any], stepper: EngineStepper) -> None:
        self._algorithm, self._stepper = algorithm, stepper
        self.replayed = 0

    def start_epoch(self) -> None:
        """To be called before anything of an epoch is done, also where a run goes on inside it."""
        self.replayed = 0

    def take(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Train on a batch. Its loss and diagnostics hold until the next one."""
        output = self._algorithm.step(batch, self._stepper)
        return self._stepper.latest, {name: value.detach() for name, value in output.diagnostics.items()}


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
        super().start_epoch()
        self._key: Hashable = None
        self._recording: Recording[tuple[Tensor, dict[str, Tensor]]] | None = None

    def take(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        key = (batch.x.shape, *(group["lr"] for group in self._optimizer.param_groups))
        if key != self._key:
            self._key, self._recording = key, None
            return super().take(batch)
        inputs = (batch.x, batch.y, batch.domain, batch.index)
        if self._recording is None and self._possible:
            self._recording = record("training steps", self._work, inputs, optimizers=[self._optimizer])
            self._possible = self._recording is not None
        if self._recording is None:
            return super().take(batch)
        self.replayed += 1
        return self._recording.replay(*inputs)

    def _work(self, x: Tensor, y: Tensor, domain: Tensor, index: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return super().take(Batch(x, y, domain, index))
