"""Measurements of `benchmarks.scale` that concern single training steps on a GPU: each in a process of its own.

python -m benchmarks.scale_steps replay 1 cpu 1     # also resnet: on a processor, tiny sizes show that it runs
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.scale_measures import Clock, Fit, print_fit
from benchmarks.train import DEMO_GPU, ERM, open_contestants, open_training, prepare, ratio_of, time_epochs
from benchmarks.weighting import BATCH, in_turn, module_step, training_steps
from stablenet.engine.session import start_fabric

REPLAYED = ("stablenet paper", "stablenet batch")
TINY = 1024  # images, on a processor
FUNCTIONS = 5


def measure_replay(rounds: int, device: str) -> Fit:
    """Epochs of StableNet batch by batch against those of plain training, and their records with and without graphs."""
    case = DEMO_GPU if device == "cuda" else replace(DEMO_GPU, made=TINY)
    with tempfile.TemporaryDirectory() as folder, Clock(device) as clock:
        seconds = time_epochs(open_contestants(case, device, Path(folder), REPLAYED), rounds, device)
        epochs = {name: train_twice(name, case, device, Path(folder)) for name in REPLAYED}
    ratios = {name: ratio_of(seconds[name], seconds[ERM]) for name in REPLAYED}
    return clock.fit("replay", rounds, ratios=ratios, epochs=epochs)


def train_twice(name: str, case: Any, device: str, folder: Path) -> dict[str, Any]:
    """Means over the second epoch with graphs and without, and how many of its steps were replayed."""
    found: dict[str, Any] = {}
    for kind, graphs in (("graphs", True), ("plain", False)):
        config, data = prepare(case, name)
        path = folder / f"{name} {kind}".replace(" ", "-")
        session, training = open_training(config, data, start_fabric(device, "auto"), path, graphs)
        for _ in range(2):
            training.run_epoch()
        session.writer.wait()
        lines = [json.loads(line) for line in session.folder.records.read_text().splitlines()]
        found[kind] = {**lines[-1]["train"], "replayed_steps": session.stepping.replayed}
    return found


def measure_resnet(repeats: int, device: str) -> Fit:
    """A step of ResNet-18 at 224 pixels with weights of q = 5 and without, and a call of the weighting alone."""
    small = {"batch": BATCH, "side": 224} if device == "cuda" else {"batch": 4, "side": 32}
    with Clock(device) as clock:
        sides = training_steps("resnet18", FUNCTIONS, device, **small)
        plain, weighted, call = in_turn(
            [*sides, module_step(512, FUNCTIONS, device)], repeats, calls=20 if device == "cuda" else 1
        )
    return clock.fit("resnet", repeats, plain=plain, weighted=weighted, call=call)


MEASURES = {"replay": measure_replay, "resnet": measure_resnet}

if __name__ == "__main__":
    print_fit(MEASURES[sys.argv[1]], *sys.argv[2:])
