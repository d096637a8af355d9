"""Speed of the engine, as ratios in one run: against a bare loop, and StableNet against ERM.

    python -m benchmarks.train                      # the demo's training on the CPU
    python -m benchmarks.train --device cuda        # the demo's and ResNet-18 at 224 pixels, on a GPU
    python -m benchmarks.train --device cuda --small    # the demo's alone
    python -m benchmarks.train --only "stablenet paper"     # beside ERM and the bare loop

Epochs of all contestants alternate, so that a slowdown of the machine affects all of them; a ratio is the median over
rounds. Everything a run does is timed: data, augmentation, training, validation, records, checkpoints. Background
writes of the engine are awaited after the clock is stopped, so that they do not slow down another contestant's epoch.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch.nn import functional

from stablenet.data.loader import MemoryPixels, PartSamples
from stablenet.data.manifest import Manifest
from stablenet.engine import feature_cache
from stablenet.engine.config import RunConfig, assemble_config
from stablenet.engine.interrupts import StopRequest
from stablenet.engine.monitor import Watcher
from stablenet.engine.run import describe_config, open_folder
from stablenet.engine.run_data import RunData, open_data
from stablenet.engine.run_folder import RunFolder
from stablenet.engine.session import Runtime, Session, build_session, make_algorithm, start_fabric
from stablenet.engine.stepping import make_optimizer
from stablenet.engine.train import Training, evaluate_loader

BARE, ERM = "bare loop", "erm"
METHODS = {
    ERM: ("erm", ()),
    "stablenet": ("stablenet", ()),
    "stablenet batch": ("stablenet", ("solve=batch",)),
    "stablenet paper": ("stablenet", ("preset=paper",)),
}
EPOCHS = 30  # of the recipes timed here
LEAST_OF_BARE = 0.97


@dataclass(frozen=True)
class Case:
    """A training to time. most: the largest allowed StableNet ÷ ERM.   tighter: the same of single methods."""

    name: str
    settings: tuple[str, ...]
    recipe: str
    most: float
    made: int = 0  # synthetic images in memory, instead of the recipe's
    tighter: Mapping[str, float] = field(default_factory=dict)


DEMO_CPU = Case("demo, paper's CNN, 28 px, cpu", (), "embedded-dr0.9", 1.25, tighter={"stablenet paper": 1.15})
DEMO_GPU = Case("paper's CNN, 28 px, cuda", ("train.batch_size=128",), "embedded-dr0.9", 1.25, made=16384)
RESNET = Case("ResNet-18, 224 px, cuda", ("model.pretrained=",), "pacs-unbalanced-5-sketch", 1.08, made=4096)


class MadeUp(RunData):
    """Random images in memory."""

    def open_part(self, part: str) -> PartSamples:
        rows, side = self.manifest.part(part), self._config.image_size
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randint(0, 256, (len(rows), side, side, 3), dtype=torch.uint8, generator=generator)
        label = torch.from_numpy(rows["label"].to_numpy(copy=True))
        count = torch.arange(len(rows))
        return PartSamples(
            MemoryPixels(rows["id"].tolist(), pixels), count, label, torch.zeros_like(label), count, len(rows)
        )


def make_rows(count: int) -> Manifest:
    """A split of synthetic images: one in sixteen for validation."""
    rows = pd.DataFrame({"id": [f"{k:06d}" for k in range(count)], "label": [k % 7 for k in range(count)], "domain": 0})
    rows["part"] = ["validation" if k % 16 == 0 else "train" for k in range(count)]
    return Manifest("made-up", "none", {}, 0, tuple("abcdefg"), ("all",), rows)


@dataclass(frozen=True)
class Contestant:
    """train: an epoch of that number, returns how many images it trained on.   rest: what is not timed.
    share: seconds charged to an epoch for what is done once per run: the whole-set solve.
    """

    train: Callable[[int], int]
    rest: Callable[[], None] = lambda: None
    share: float = 0.0


def open_contestants(case: Case, device: str, folder: Path, only: Sequence[str] = ()) -> dict[str, Contestant]:
    """ERM, the bare loop and the methods named, by default all, by name."""
    contestants: dict[str, Contestant] = {}
    feature_cache.WORTH_KEEPING = 2**62  # every contestant reads its features itself
    fabric = start_fabric(device, "auto")
    for name in METHODS:
        if only and name not in (ERM, *only):
            continue
        config, data = prepare(case, name)
        contestants[name] = open_engine(config, data, fabric, folder / name.replace(" ", "-"))
        if name == ERM:
            contestants[BARE] = open_bare(config, data, fabric, folder)
    return contestants


def prepare(case: Case, name: str) -> tuple[RunConfig, RunData]:
    """The config of a method in `METHODS` and its data."""
    method, parameters = METHODS[name]
    own = [f"method.name={method}", *(f"method.parameters.{p}" for p in parameters), "train.epochs=100000"]
    config = assemble_config(case.recipe, None, [*case.settings, *own])
    return config, MadeUp(config.data, make_rows(case.made), None) if case.made else make_data(config)


def make_data(config: RunConfig) -> RunData:
    return open_data(config, None)


def open_training(
    config: RunConfig, data: RunData, fabric: Any, path: Path, graphs: bool = True
) -> tuple[Session, Training]:
    folder = RunFolder(path)
    described = describe_config(config, data.manifest, None)
    open_folder(folder, described, data.manifest, resume=False)
    session = build_session(config, Runtime(graphs=graphs), fabric, folder, data)
    return session, Training(session, Watcher(), StopRequest(), described)


def open_engine(config: RunConfig, data: RunData, fabric: Any, path: Path) -> Contestant:
    session, training = open_training(config, data, fabric, path)

    def run(epoch: int) -> int:
        training.run_epoch()
        return len(session.training) * config.train.batch_size

    return Contestant(run, session.writer.wait, _time_solve(session) / EPOCHS)


def _time_solve(session: Session) -> float:
    """Seconds of what the method does before the first epoch, the second time it is done."""
    seconds = 0.0
    for _ in range(2):
        start = time.perf_counter()
        judge = session.algorithm.judge_epochs()
        if judge is not None and session.validation_set is not None:
            judge.start(session.validation_set)
        session.algorithm.start_epoch(0, session.training_set)
        _wait(session.device.type)
        seconds = time.perf_counter() - start
    return seconds


def open_bare(config: RunConfig, data: RunData, fabric: Any, path: Path) -> Contestant:
    """The loop one would write by hand, with the same loaders, network and optimiser."""
    session = build_session(config, Runtime(graphs=False), fabric, RunFolder(path), data)
    algorithm = make_algorithm(config, Runtime(), data.manifest, fabric)
    network, device = algorithm.network, fabric.device
    optimizer = make_optimizer(algorithm, config.train, device)
    layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format

    def run(epoch: int) -> int:
        network.train()
        for batch in session.training.epoch(epoch):
            x = batch.x.contiguous(memory_format=layout)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = functional.cross_entropy(network(x), batch.y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        assert session.validation is not None
        network.eval()
        evaluate_loader(lambda batch: network(batch.x), session.validation, data.manifest, fabric)
        return len(session.training) * config.train.batch_size

    return Contestant(run)


def time_epochs(contestants: dict[str, Contestant], rounds: int, device: str) -> dict[str, list[float]]:
    """Seconds per image of every contestant in every round, after a warm-up round."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, contestant in contestants.items():
            _wait(device)
            start = time.perf_counter()
            images = contestant.train(number)
            _wait(device)
            if number:
                seconds[name].append((time.perf_counter() - start + contestant.share) / images)
            contestant.rest()
    return seconds


def report(case: Case, seconds: dict[str, list[float]]) -> bool:
    """Print a table; whether all limits hold."""
    print(f"\n{case.name}")
    for name, values in seconds.items():
        print(f"  {name:16s} {1 / statistics.median(values):12,.0f} images/s")
    of_bare = ratio_of(seconds[BARE], seconds[ERM])
    holds = of_bare >= LEAST_OF_BARE
    print(f"  erm, engine's speed ÷ bare loop's: {of_bare:.3f} (at least {LEAST_OF_BARE})")
    for name in seconds:
        if name not in (ERM, BARE):
            most = case.tighter.get(name, case.most)
            ratio = ratio_of(seconds[name], seconds[ERM])
            holds &= ratio <= most
            print(f"  {name}, time ÷ erm's: {ratio:.3f} (at most {most})")
    return holds


def ratio_of(above: list[float], below: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--small", action="store_true", help="on a GPU, the small network alone")
    parser.add_argument("--only", nargs="+", choices=[name for name in METHODS if name != ERM], default=())
    chosen = parser.parse_args()
    if chosen.small and chosen.device == "cpu":
        parser.error("--small is for --device cuda: the processor's network is small anyway")
    on_gpu = (DEMO_GPU,) if chosen.small else (DEMO_GPU, RESNET)
    cases = on_gpu if chosen.device == "cuda" else (DEMO_CPU,)
    holds = True
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            contestants = open_contestants(case, chosen.device, Path(folder), chosen.only)
            holds &= report(case, time_epochs(contestants, chosen.rounds, chosen.device))
    print("\nall limits hold" if holds else "\nA LIMIT IS BROKEN")
    raise SystemExit(not holds)


if __name__ == "__main__":
    main()
