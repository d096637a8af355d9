"""What training would do, before it does it: the run's folder, its data, its steps and the time they should take.

Images are listed, not decoded, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from stablenet.data.loader import BatchSettings, count_batches
from stablenet.data.manifest import Manifest
from stablenet.engine.config import RunConfig
from stablenet.engine.devices import choose_device, name_device
from stablenet.engine.monitor import check_loggers
from stablenet.engine.run import Run, choose_folder, describe_config, list_runs
from stablenet.engine.run_data import check_config, open_data
from stablenet.engine.session import Runtime
from stablenet.errors import UserError
from stablenet.files import read_lines


@dataclass(frozen=True)
class Preview:
    """folder: where the run is or would be.   state: of the run there, "" for none.
    steps_per_epoch, steps: in total, over all epochs.   device: its name.
    seconds: expected for these steps, without reading data, solving and validation; None if no speed is known.
    measured: runs that it is taken from, of the same network, method and image size on this device.
    """

    config: RunConfig
    folder: Path
    state: str
    manifest: Manifest
    steps_per_epoch: int
    steps: int
    device: str
    seconds: float | None
    measured: int


def preview(config: RunConfig, runtime: Runtime) -> Preview:
    """Check and describe a run as `train` would start it."""
    check_config(config)
    check_loggers(runtime.loggers)
    manifest = open_data(config, runtime.root).manifest
    folder = choose_folder(describe_config(config, manifest, runtime.root), config, runtime.runs, runtime.folder)
    per_epoch = _count_steps(config, len(manifest.part("train")))
    total = per_epoch * config.train.epochs
    steps = min(total, config.train.max_steps or total)
    kind, chosen = choose_device(runtime.device)
    device = name_device(kind, chosen[0] if isinstance(chosen, list) else 0)
    speeds = [speed for run in _list_alike(config, runtime.runs) if (speed := _read_speed(run, device)) is not None]
    return Preview(
        config=config,
        folder=folder.path,
        state=folder.read_status()["state"] if folder.config.exists() else "",
        manifest=manifest,
        steps_per_epoch=per_epoch,
        steps=steps,
        device=device,
        seconds=steps * config.train.batch_size / median(speeds) if speeds else None,
        measured=len(speeds),
    )


def _count_steps(config: RunConfig, images: int) -> int:
    train = config.train
    settings = BatchSettings(
        batch_size=train.batch_size, balance_domains=train.balance_domains, drop_last=train.drop_last
    )
    steps = count_batches(images, settings)
    if steps == 0:
        raise UserError(f"{images} training images do not fill one batch of {train.batch_size}: set train.batch_size")
    return steps


def _list_alike(config: RunConfig, runs: Path) -> Iterator[Run]:
    for run in list_runs(runs):
        if _key(run.config) == _key(config):
            yield run


def _key(config: RunConfig) -> tuple[Any, ...]:
    """What decides the speed, roughly."""
    return config.model.name, config.method.name, config.data.image_size, config.data.augment


def _read_speed(run: Run, device: str) -> float | None:
    """Images per second on this device in the run's last session, None where it was never measured."""
    lines = read_lines(run.folder.timing)
    sessions = [number for number, line in enumerate(lines) if line["kind"] == "session"]
    if not sessions or lines[sessions[-1]]["device"] != device:
        return None
    epochs = [line["images_per_second"] for line in lines[sessions[-1] :] if line["kind"] == "epoch"]
    return median(epochs) if epochs else None
