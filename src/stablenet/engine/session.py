"""A running session: device, precision and processes by Lightning Fabric, and the components of a run on them.

The components are built from the config: data, network, method and optimiser. Random number generators are isolated.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stablenet.algorithms import Algorithm, Context, TrainingSet, build_algorithm
from stablenet.data.loader import Batch, Loader
from stablenet.data.manifest import Manifest
from stablenet.engine import feature_cache
from stablenet.engine.checkpoint import Writer
from stablenet.engine.config import RunConfig
from stablenet.engine.feature_cache import (
    Collect,
    Entry,
    FeatureCache,
    FeatureKey,
    Features,
    hash_module,
    hash_samples,
)
from stablenet.engine.run_data import Feeder, RunData
from stablenet.engine.run_folder import RunFolder
from stablenet.engine.stepping import (
    EngineStepper,
    Graphs,
    ReplayedStepping,
    Stepping,
    choose_graphs,
    graph_network,
    make_optimizer,
)
from stablenet.errors import UserError
from stablenet.models import Network, build_network
from stablenet.randomness import mix_process_seed
from stablenet.values import NonNegative, check_fields, is_whole


def start_fabric(device: str, precision: str) -> Any:
    """Launch Fabric. Under torchrun, it joins the other processes."""
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # its import sets a more verbose level
    accelerator, devices = choose_device(device)
    world, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    strategy: Any = DDPStrategy() if world > 1 else "auto"
    fabric = Fabric(
        accelerator=accelerator,
        devices=local if world > 1 else devices,
        num_nodes=world // local,
        strategy=strategy,
        precision="bf16-mixed" if uses_bf16(precision, accelerator) else "32-true",
    )
    fabric.launch()
    return fabric


def uses_bf16(precision: str, accelerator: str) -> bool:
    """Whether the network computes in bfloat16: on request, and by default on GPUs with native support."""
    if precision == "auto":
        return accelerator == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return precision == "bf16"


def choose_device(device: str) -> tuple[str, int | list[int]]:
    """Fabric's accelerator and devices for "auto", "cpu", "cuda" or "cuda:1"."""
    kind, _, number = device.partition(":")
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu" and not number:
        return "cpu", 1
    if kind != "cuda" or (number and not is_whole(number)):
        raise UserError(f"unknown device {device!r}: choose auto, cpu, cuda, or a GPU such as cuda:0")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number or 0) >= found:
        available = f"torch finds only {found}" if found else "torch finds no GPU"
        raise UserError(f"the device {device!r} is not available, {available}: use --device cpu or auto")
    return "cuda", [int(number)] if number else 1


def name_device(kind: str, index: int = 0) -> str:
    """The name of a device, as in `timing.jsonl`.   kind: cpu or cuda."""
    name = torch.cuda.get_device_name(index) if kind == "cuda" else platform.processor() or platform.machine()
    return f"{kind}: {name}"


@contextmanager
def own_random_numbers(device: torch.device) -> Iterator[None]:
    """Allow the block to seed torch's global generators; their state is restored afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        yield


def seed_generators(device: torch.device, seed: int, rank: int, step: int) -> None:
    """Seed the generators, so that dropout and initial weights are functions of (seed, rank, step): no state to save.

    Step −1 is the initialization of the network, which is the same in every process.
    """
    value = mix_process_seed(seed, rank, step)
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(value)


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """How a run is executed; none of these changes its results, except for rounding on different devices.

    runs: folder of run folders.   folder: of this run, instead of one named by the config's hash.
    root: folder of the data source.   resume: continue an unfinished run.
    checkpoint_minutes: between checkpoints within an epoch; every epoch ends with one.
    figures_only: write no checkpoints, so that a stopped run begins anew, and of the networks the best and the last.
    keep_epochs: keep the model of every epoch.   oracle: evaluate the target each epoch, into a separate file.
    graphs: replay small networks, or whole steps of them, as CUDA graphs.
    loggers: where curves are written beside the records, see `stablenet.engine.monitor`.
    """

    runs: Path = Path("runs")
    folder: Path | None = None
    root: Path | None = None
    device: str = "auto"
    resume: bool = False
    checkpoint_minutes: NonNegative = 10.0
    figures_only: bool = False
    keep_epochs: bool = False
    oracle: bool = False
    graphs: bool = True
    loggers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Session:
    """The components of a run. training_set, validation_set: data a method may read before and between epochs."""

    config: RunConfig
    runtime: Runtime
    fabric: Any
    folder: RunFolder
    manifest: Manifest
    algorithm: Algorithm[Any]
    stepper: EngineStepper
    stepping: Stepping
    optimizer: torch.optim.Optimizer
    training: Loader
    training_set: UnaugmentedSet
    validation: Loader | None
    validation_set: UnaugmentedSet | None
    target: Loader | None
    graphed: Graphs
    writer: Writer

    @property
    def device(self) -> torch.device:
        return self.training.device

    @property
    def first(self) -> bool:
        """Whether this process writes the files."""
        return bool(self.fabric.global_rank == 0)

    @property
    def total_steps(self) -> int:
        steps = self.config.train.epochs * len(self.training)
        return min(steps, self.config.train.max_steps or steps)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The training batches of an epoch, drawn as the method asks, starting at batch `start`."""
        return self.training.epoch(epoch, start, self.algorithm.sampling_weights())


class UnaugmentedSet(TrainingSet):
    """`TrainingSet` over the samples of a part, of several processes over this one's range, with the run's precision.

    progress: called with samples done and in total while features are read.   tell: called with a sentence on the
        cache.
    """

    def __init__(self, make_loader: Callable[[], Loader], fabric: Any, config: RunConfig) -> None:
        self._make_loader, self._fabric, self._config = make_loader, fabric, config
        self.progress: Callable[[int, int], None] = lambda done, total: None
        self.tell: Callable[[str], None] = lambda text: None

    def batches(self) -> Iterator[Batch]:
        # Only while batches are read: what a method computes from them afterwards needs full precision.
        with self._fabric.autocast():
            yield from self._loader.epoch(0)

    def pixels(self) -> Iterator[Batch]:
        samples, device = self._loader.samples, self._loader.device
        own = torch.tensor(self._loader.own, dtype=torch.int64)
        for index in own.split(self._config.train.batch_size):
            x = samples.pixels.read(samples.row[index])
            columns = (x, samples.y[index], samples.domain[index], index)
            yield Batch(*(column.to(device) for column in columns))

    def read_taps(self, network: Network, taps: Sequence[str], collect: Collect, reuse: bool = False) -> None:
        """As in `TrainingSet`; a long pass that others may want is kept on disk, and taken from there."""

        def read_all(collect: Collect) -> None:
            done, total = 0, len(self._loader.own)

            def count(index: Tensor, features: Features, labels: Tensor) -> None:
                nonlocal done
                collect(index, features, labels)
                done += len(index)
                self.progress(min(done, total), total)

            TrainingSet.read_taps(self, network, taps, count)

        pixels = len(self._loader.samples) * self._config.data.image_size**2
        if not reuse or pixels < feature_cache.WORTH_KEEPING:
            read_all(collect)
            return
        cache = FeatureCache(self._describe(network, taps), self.tell, self._fabric.device)
        cache.read(read_all, lambda: self._read_first(network, taps), collect)

    def _read_first(self, network: Network, taps: Sequence[str]) -> Entry:
        found: list[Entry] = []
        first = ((batch, batch.x) for batch in islice(self.batches(), 1))
        network.read_taps(taps, first, lambda batch, features: found.append((batch.index, features, batch.y)))
        return found[0]

    def _describe(self, network: Network, taps: Sequence[str]) -> FeatureKey:
        """All that the features depend on, except for the code of libraries and of the user's own networks."""
        data, model = self._config.data, self._config.model
        values = {
            "model": [model.name, self._config.network_parameters, network.adaptation, hash_module(network.body)],
            "taps": list(taps),
            "samples": hash_samples(self._loader.samples),
            "images": [data.image_size, list(data.mean), list(data.std)],
            "computed": [self._fabric.device.type, uses_bf16(self._config.train.precision, self._fabric.device.type)],
        }
        if self._fabric.world_size > 1:  # each keeps what it reads
            values["range"] = [self._loader.own.start, self._loader.own.stop]
        return FeatureKey(data.source or "manifest", values)

    @cached_property
    def _loader(self) -> Loader:
        """Created on first use: on a GPU it may hold a second copy of all pixels."""
        return self._make_loader()


def build_session(config: RunConfig, runtime: Runtime, fabric: Any, folder: RunFolder, data: RunData) -> Session:
    """Read the source parts, initialize the network from the seed, and move everything to the device."""
    device, manifest = fabric.device, data.manifest
    feeder = Feeder(data, config.train, config.seed, device, fabric.global_rank, fabric.world_size)
    training = feeder.training(data.open_part("train"))
    algorithm = make_algorithm(config, runtime, manifest, fabric)
    algorithm.graphs = runtime.graphs
    optimizer = make_optimizer(algorithm, config.train, device)
    stepper = EngineStepper(algorithm, optimizer, fabric, config.train.batch_size)
    graphed: Graphs = _graph(algorithm, config, training, fabric) if runtime.graphs else "none"
    stepping = ReplayedStepping(algorithm, stepper, optimizer) if graphed == "step" else Stepping(algorithm, stepper)
    validation = _open_reading(feeder, data, "validation")

    def pass_validation() -> Loader:
        assert validation is not None
        return validation if fabric.world_size == 1 else feeder.passing(validation.samples)

    return Session(
        config=config,
        runtime=runtime,
        fabric=fabric,
        folder=folder,
        manifest=manifest,
        algorithm=algorithm,
        stepper=stepper,
        stepping=stepping,
        optimizer=optimizer,
        training=training,
        training_set=UnaugmentedSet(lambda: feeder.passing(training.samples), fabric, config),
        validation=validation,
        validation_set=None if validation is None else UnaugmentedSet(pass_validation, fabric, config),
        target=_open_reading(feeder, data, "test") if runtime.oracle else None,
        graphed=graphed,
        writer=Writer(device),
    )


def make_algorithm(config: RunConfig, runtime: Runtime, manifest: Manifest, fabric: Any) -> Algorithm[Any]:
    """The method and its network on the device, initialized the same in every process."""
    device = fabric.device
    seed_generators(device, config.seed, rank=0, step=-1)
    model = config.model
    network = build_network(
        model.name,
        len(manifest.classes),
        pretrained=model.pretrained,
        head=model.head,
        parameters=config.network_parameters,
        root=runtime.root,
    )
    if model.statistics == "frozen":
        network.keep_statistics()
    context = Context.of_split(manifest, config.train.epochs, config.seed, bool(config.model.pretrained))
    algorithm = build_algorithm(config.method.name, config.method.parameters, network, context)
    if fabric.world_size > 1 and not algorithm.several_processes:
        raise UserError(f"{type(algorithm).__name__} supports only one process: start it without torchrun")
    if config.train.balance_domains and algorithm.draws_samples:
        raise UserError(f"{config.method.name} chooses how often samples are drawn: set train.balance_domains=false")
    if device.type == "cuda":
        algorithm = algorithm.to(memory_format=torch.channels_last)
        if fabric.world_size > 1 and config.train.sync_batchnorm:
            algorithm = nn.SyncBatchNorm.convert_sync_batchnorm(algorithm)
    return algorithm.to(device).train()


def _open_reading(feeder: Feeder, data: RunData, part: str) -> Loader | None:
    """A loader of a part, None if the part is empty."""
    if not (data.manifest.rows["part"] == part).any():
        return None
    return feeder.reading(data.open_part(part))


def _graph(algorithm: Algorithm[Any], config: RunConfig, training: Loader, fabric: Any) -> Graphs:
    """Choose what is replayed as CUDA graphs, and capture the network's passes if they are chosen."""
    size, batch = config.data.image_size, config.train.batch_size
    same_shapes = training.settings.drop_last or len(training.samples) % batch == 0
    graphs = choose_graphs(algorithm, config.train, fabric.device, size, len(training), same_shapes, fabric.world_size)
    if graphs == "passes":
        images = torch.zeros(batch, 3, size, size, device=fabric.device).contiguous(memory_format=torch.channels_last)
        bf16 = uses_bf16(config.train.precision, fabric.device.type)
        graph_network(algorithm, images, torch.bfloat16 if bf16 else None)
    return graphs
