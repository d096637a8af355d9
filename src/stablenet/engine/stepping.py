"""One update per batch: the interface between the engine and a method's step, and the optimiser.

A small network's kernels take less time than their launches, hence the graphs. Sums of loss and diagnostics stay on the
device: one stack and one addition per step.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch import distributed as dist

from stablenet.algorithms import Algorithm, StepOutput
from stablenet.data.loader import Batch
from stablenet.engine.config import TrainConfig
from stablenet.models import Network
from stablenet.replay import HostSide, Recording, device_work, quiet_capture, record

FLOOR = 0.01  # of the quarter cosine, relative to its start (published code)


def make_optimizer(algorithm: Algorithm[Any], config: TrainConfig, device: torch.device) -> torch.optim.Optimizer:
    """The optimiser of the method's parameter groups; fused on a GPU."""
    groups = algorithm.parameter_groups()
    shared: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    if device.type == "cuda":
        shared["fused"] = True
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=config.momentum, nesterov=config.nesterov, **shared)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, **shared)


def learning_rate(config: TrainConfig, epoch: int, step: int, total_steps: int) -> float:
    """Learning rate at step `step` (from 0) in epoch `epoch` (from 0); stateless, so nothing needs to be saved."""
    if config.schedule == "steps":
        passed = sum(epoch >= milestone for milestone in config.milestones)
        return config.learning_rate * config.decay**passed
    if config.schedule == "cosine":
        return config.learning_rate * (1 + math.cos(math.pi * step / total_steps)) / 2
    if config.schedule == "quarter-cosine":
        return config.learning_rate * (FLOOR + math.cos(math.pi / 2 * epoch / config.epochs)) / (1 + FLOOR)
    return config.learning_rate


def rate_rests(config: TrainConfig) -> bool:
    """Whether the rate is constant within an epoch."""
    return config.schedule in ("constant", "steps", "quarter-cosine")


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate_scale"]


GOOD = -1  # all losses so far were finite


class EpochMeans:
    """Means over an epoch, the latest values, and the first step with a non-finite loss.

    processes: number of processes; their values are averaged in every step, so that all have the same sums, notice a
        bad step in any of them, and can resume from one checkpoint.
    """

    def __init__(self, device: torch.device, processes: int = 1) -> None:
        self._device, self._processes = device, processes
        self._names: tuple[str, ...] = ()
        self._restored = False
        self._bad_step = torch.full((), GOOD, dtype=torch.int64, device=device)
        self.clear()

    def clear(self) -> None:
        """Start a new epoch."""
        self._sums = self._counts = self._latest = torch.zeros(0, device=self._device)

    def add(self, step: int, loss: Tensor, diagnostics: Mapping[str, Tensor]) -> None:
        """Add the scalars of one step; NaN diagnostics are ignored."""
        names = ("loss", *diagnostics)
        values = torch.stack([loss.detach().float(), *(value.detach().float() for value in diagnostics.values())])
        if self._processes > 1:
            dist.all_reduce(values)
            values = values / self._processes
        if not self._sums.numel():
            self._names, self._sums, self._counts = names, torch.zeros_like(values), torch.zeros_like(values)
        elif self._restored and names != self._names:
            self._rename(names)
        self._restored = False
        assert names == self._names, f"diagnostics changed from {self._names} to {names}"
        finite = torch.isfinite(values)
        self._sums = self._sums + torch.where(finite, values, 0.0)
        self._counts = self._counts + finite
        self._bad_step = torch.where(finite[0] | (self._bad_step != GOOD), self._bad_step, step)
        self._latest = values

    def means(self) -> dict[str, float]:
        """Means of the epoch. Synchronizes with the device."""
        values = (self._sums / self._counts).tolist()
        return dict(zip(self._names, values, strict=True))

    def latest(self) -> dict[str, float]:
        """Values of the latest step. Synchronizes with the device."""
        return dict(zip(self._names, self._latest.tolist(), strict=True))

    def bad_step(self) -> int | None:
        """The first step with a non-finite loss, if any. Synchronizes with the device."""
        step = int(self._bad_step)
        return None if step == GOOD else step

    def state(self) -> tuple[dict[str, Tensor], list[str]]:
        return {"sums": self._sums, "counts": self._counts}, list(self._names)

    def restore(self, tensors: Mapping[str, Tensor], names: list[str]) -> None:
        self._sums, self._counts = tensors["sums"].to(self._device), tensors["counts"].to(self._device)
        self._names, self._restored = tuple(names), True

    def _rename(self, names: tuple[str, ...]) -> None:
        """Another version of the method, whose checkpoint this was, may have had other diagnostics."""
        nothing, before = torch.zeros((), device=self._device), {name: k for k, name in enumerate(self._names)}
        for sums in ("_sums", "_counts"):
            old = getattr(self, sums)
            setattr(self, sums, torch.stack([old[before[name]] if name in before else nothing for name in names]))
        self._names = names


Graphs = Literal["none", "passes", "step"]

SMALL_IMAGE = 64  # pixels; beyond, the kernels of most networks take long enough to hide their launches
MOST_RECORDINGS = 8  # of an epoch; each holds the memory of a step
LEAST_STEPS = 32  # per epoch, to pay for the recording; an estimate: tested with 42 and more
SMALL_RESNET = 12_000_000  # parameters; up to here larger images are captured too: ResNet-18 at 224 gains 4 %


class TappedForward(nn.Module):
    """`Network.forward_taps` as a module's forward, so that it can be captured."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return self.network.forward_taps(images)


def choose_graphs(
    algorithm: Algorithm[Any],
    config: TrainConfig,
    device: torch.device,
    image_size: int,
    steps: int,
    same_shapes: bool,
    world: int,
) -> Graphs:
    """What to capture, as far as possible and worthwhile: whole steps, the network's two passes, or nothing.

    steps: per epoch. Whole steps are recorded again in every epoch, and need a constant rate within it.
    """
    if device.type != "cuda" or world > 1:
        return "none"
    small = image_size <= SMALL_IMAGE
    if small and algorithm.replayable and steps >= LEAST_STEPS and rate_rests(config):
        return "step"
    worth = small or _is_small_resnet(algorithm.network)
    return "passes" if worth and same_shapes and algorithm.one_plain_pass else "none"


def _is_small_resnet(network: Network) -> bool:
    """Other families are not captured for large images: this is untested."""
    count = sum(parameter.numel() for parameter in network.parameters())
    return type(network.body).__name__ == "ResNet" and count <= SMALL_RESNET


def graph_network(algorithm: Algorithm[Any], images: Tensor, dtype: torch.dtype | None) -> None:
    """Capture forward and backward passes for images of this shape, and make the method use them.

    Capturing runs the network a few times; its buffers are restored. dtype: of autocast, None without.
    """
    buffers = {name: buffer.clone() for name, buffer in algorithm.network.named_buffers()}
    # The cache of cast weights must be off: a graph must not depend on casts outside of it.
    with quiet_capture(), torch.autocast("cuda", dtype=dtype, enabled=dtype is not None, cache_enabled=False):
        graphed: Any = torch.cuda.make_graphed_callables(TappedForward(algorithm.network), (images,))
    with torch.no_grad():
        for name, buffer in algorithm.network.named_buffers():
            buffer.copy_(buffers[name])
    algorithm.run_network_with(lambda images: graphed(images))  # not a submodule: it shares the network's weights


class EngineStepper:
    """Computes the loss through Fabric, with one backward pass and one optimiser step per batch."""

    def __init__(
        self, algorithm: Algorithm[Any], optimizer: torch.optim.Optimizer, fabric: Any, batch_size: int
    ) -> None:
        wrapped = fabric.setup_module(algorithm)
        # Fabric's wrapper is needed to reduce gradients; otherwise its overhead would slow down small networks.
        self._module = wrapped if fabric.world_size > 1 else algorithm
        self._optimizer, self._fabric = optimizer, fabric
        self._channels_last = fabric.device.type == "cuda"
        # Checking is free here; elsewhere it would wait for the device, or for other processes.
        self._guarded = fabric.device.type == "cpu" and fabric.world_size == 1
        self.joined = batch_size  # samples of this step over all processes
        self.latest = torch.zeros(())  # this process's reduced loss of the latest step

    def loss(self, batch: Batch) -> StepOutput:
        x = batch.x.contiguous(memory_format=torch.channels_last) if self._channels_last else batch.x
        with self._fabric.autocast():
            per_sample, weights, diagnostics = self._module(x, batch.y, batch.domain, batch.index)
        return StepOutput(per_sample, weights, diagnostics)

    def descend(self, output: StepOutput) -> None:
        loss = self._reduce(output)
        self.latest = loss.detach()
        if self._guarded and not torch.isfinite(self.latest):
            return  # skip the step: the training loop stops the run at this loss
        self._optimizer.zero_grad(set_to_none=True)
        self._fabric.backward(loss)
        self._optimizer.step()

    def _reduce(self, output: StepOutput) -> Tensor:
        """The weighted mean over all processes' batch; gradients are averaged over processes, hence the factor."""
        losses = output.per_sample_loss
        if output.weights is not None:
            losses = output.weights * losses
        if self._fabric.world_size == 1:
            return losses.mean()
        processes: int = self._fabric.world_size
        return losses.sum() * (processes / self.joined)


class Stepping:
    """Plain training steps. replayed: number of replayed steps in this epoch."""

    def __init__(self, algorithm: Algorithm[Any], stepper: EngineStepper) -> None:
        self._algorithm, self._stepper = algorithm, stepper
        self.replayed = 0

    def start_epoch(self) -> None:
        """Call at the start of an epoch, also when resuming within it."""
        self.replayed = 0
        self.renew()

    def renew(self) -> None:
        """Call when the method has changed what a step works on: a recording would still hold the old state."""

    def take(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Train on a batch. Its loss and diagnostics are valid until the next step."""
        output = self._algorithm.step(batch, self._stepper)
        return self._stepper.latest, {name: value.detach() for name, value in output.diagnostics.items()}


class ReplayedStepping(Stepping):
    """Replays whole steps (passes, loss, optimiser) as one CUDA graph, which saves small networks most of their time.

    The first step of a kind in an epoch runs normally, the second is recorded. A kind is what a recording contains: the
    shape, the rates, and where the method's modules read and write. Steps are recorded again in every epoch, because a
    method may change its state between epochs, and after every change it makes within one (`renew`). What its modules
    do on the host, they do around each replay.
    """

    def __init__(self, algorithm: Algorithm[Any], stepper: EngineStepper, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(algorithm, stepper)
        self._optimizer = optimizer
        device = next(algorithm.parameters()).device
        sides = [module for module in algorithm.modules() if isinstance(module, HostSide)]
        self._sides: dict[HostSide, torch.Generator] = {side: torch.Generator(device) for side in sides}
        self._possible = True
        self.renew()

    def renew(self) -> None:
        self._rates: Hashable = None
        self._recordings: dict[Hashable, Recording[tuple[Tensor, dict[str, Tensor]]] | None] = {}

    def take(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        recording = self._find(batch)
        if recording is None:
            return super().take(batch)
        size = len(batch.y)
        for side, generator in self._sides.items():
            side.before_replay(generator)
        self.replayed += 1
        result = recording.replay(*_inputs(batch))
        for side in self._sides:
            side.after_replay(size)
        return result

    def _find(self, batch: Batch) -> Recording[tuple[Tensor, dict[str, Tensor]]] | None:
        """The recording of steps of this kind; None where there is none yet, or cannot be."""
        rates = tuple(group["lr"] for group in self._optimizer.param_groups)
        if rates != self._rates:
            self._rates, self._recordings = rates, {}
        places = [side.recording_key(len(batch.y)) for side in self._sides]
        if not self._possible or None in places:
            return None
        key = (batch.x.shape, *places)
        if key not in self._recordings:
            if len(self._recordings) == MOST_RECORDINGS:  # kinds that came once, as while a memory fills
                self._recordings = {known: recording for known, recording in self._recordings.items() if recording}
            if len(self._recordings) < MOST_RECORDINGS:
                self._recordings[key] = None
        elif self._recordings[key] is None:
            self._recordings[key] = self._record(batch)
            self._possible = self._recordings[key] is not None
        return self._recordings.get(key)

    def _record(self, batch: Batch) -> Recording[tuple[Tensor, dict[str, Tensor]]] | None:
        options = {"optimizers": [self._optimizer], "generators": [*self._sides.values()]}
        return record("training steps", self._work, _inputs(batch), **options)

    def _work(self, x: Tensor, y: Tensor, domain: Tensor, index: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        with device_work(self._sides):
            return super().take(Batch(x, y, domain, index))


def _inputs(batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return batch.x, batch.y, batch.domain, batch.index
