"""Measured speeds: one line per finished run, and how long a run will take judged by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from stablenet.bench.cells import CellRun
from stablenet.engine.config import RunConfig
from stablenet.engine.runs import Run
from stablenet.files import Lines, read_lines
from stablenet.values import read_fields

_CONTEXT_GIGABYTES = 0.8  # what a process needs on a GPU beside its tensors
_GIGABYTES_AT_224 = 14.0  # ResNet-18, batches of 128 images of 224 pixels: a first guess before anything was measured
_LEAST_GIGABYTES = 1.5


@dataclass(frozen=True, kw_only=True)
class Speed:
    """seconds_per_epoch: of the whole run, evaluation and start included, while it shared its device with others.
    series: of the config without its seed.   peak_gigabytes: of the GPU, None on the CPU.
    """

    series: str
    recipe: str
    source: str
    model: str
    image_size: int
    batch_size: int
    method: str
    device: str
    stablenet: str
    seconds_per_epoch: float
    images_per_second: float
    peak_gigabytes: float | None

    def resembles(self, config: RunConfig) -> bool:
        """The same method and network on images of the same source and size: another split of the same work."""
        same = (config.data.source, config.model.name, config.data.image_size, config.method.name)
        return same == (self.source, self.model, self.image_size, self.method)


@dataclass(frozen=True)
class Estimate:
    """basis: measured with this very config; similar: with another split or parameters of the same method."""

    seconds: float
    basis: Literal["measured", "similar"]
    device: str


def speeds_path(runs: Path) -> Path:
    return runs / ".bench" / "speeds.jsonl"


def record_speed(path: Path, run: Run, series: str, seconds: float, before: int) -> None:
    """Note a finished run's speed.   seconds: of this session.   before: epochs that were done when it began."""
    epochs = int(run.status["epoch"]) - before
    timing = read_lines(run.folder.timing)
    lines = [line for line in timing if line["kind"] == "epoch"][-epochs:]
    if epochs < 1 or not lines:
        return
    session = [line for line in timing if line["kind"] == "session"][-1]
    speed = Speed(
        series=series,
        recipe=run.config.label,
        source=run.manifest.source,
        model=run.config.model.name,
        image_size=run.config.data.image_size,
        batch_size=run.config.train.batch_size,
        method=run.config.method.name,
        device=session["device"],
        stablenet=session["stablenet"],
        seconds_per_epoch=seconds / epochs,
        images_per_second=median(line["images_per_second"] for line in lines),
        peak_gigabytes=max((line["peak_gigabytes"] for line in lines if "peak_gigabytes" in line), default=None),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    file = Lines(path)
    file.append(asdict(speed))
    file.close()


def read_speeds(path: Path) -> list[Speed]:
    """All speeds noted so far, the latest last."""
    return [read_fields(Speed, line) for line in read_lines(path)]


def name_device(kind: str, index: int = 0) -> str:
    """A device as run folders name it in `timing.jsonl`."""
    import platform

    import torch

    if kind == "cuda":
        return f"cuda: {torch.cuda.get_device_name(index)}"
    return f"cpu: {platform.processor() or platform.machine()}"


def estimate(speeds: Sequence[Speed], run: CellRun, device: str) -> Estimate | None:
    """Time of a whole run, by the median of what was measured: this device before others, this config before similar.

    None where nothing like it was ever measured: no time is made up.
    """
    chosen, basis = _find_alike(speeds, run, device)
    if not chosen:
        return None
    return Estimate(
        median(speed.seconds_per_epoch for speed in chosen) * run.config.train.epochs, basis, chosen[-1].device
    )


def guess_gigabytes(speeds: Sequence[Speed], run: CellRun, device: str) -> float:
    """GPU memory a run may need: what runs like it took, or a guess by the images' size that errs upwards."""
    alike, _ = _find_alike([speed for speed in speeds if speed.peak_gigabytes is not None], run, device)
    if alike:
        return max(speed.peak_gigabytes or 0.0 for speed in alike) + _CONTEXT_GIGABYTES
    config = run.config
    images = config.train.batch_size / 128 * (config.data.image_size / 224) ** 2
    return max(_LEAST_GIGABYTES, _GIGABYTES_AT_224 * images)


def _find_alike(
    speeds: Sequence[Speed], run: CellRun, device: str
) -> tuple[list[Speed], Literal["measured", "similar"]]:
    here = [speed for speed in speeds if speed.device == device]
    for among in (here, speeds):
        same = [speed for speed in among if speed.series == run.series]
        if same:
            return _latest_device(same), "measured"
        similar = [speed for speed in among if speed.resembles(run.config)]
        if similar:
            return _latest_device(similar), "similar"
    return [], "similar"


def _latest_device(speeds: Sequence[Speed]) -> list[Speed]:
    return [speed for speed in speeds if speed.device == speeds[-1].device]
