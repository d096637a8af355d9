"""A source of a few small pictures, runs on it, and child processes that train and are killed."""

import multiprocessing
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

from stablenet.data.image_list import ComposedList
from stablenet.data.sources import SOURCES, Source
from stablenet.engine.config import assemble_config
from stablenet.engine.monitor import Watcher
from stablenet.engine.session import Runtime, make_algorithm, own_random_numbers, start_fabric
from stablenet.engine.train import train

CLASSES, BACKGROUNDS, DIGITS = 3, 8, 90
STABLENET = ("stablenet", "method.parameters.solve=batch")  # with a memory, the paper's way
SETTINGS = (
    "data.source=tiny",
    "data.image_size=12",
    "data.parameters.validation=0.2",
    "model.parameters.image_size=12",
    "train.epochs=3",
    "train.batch_size=8",
    "train.log_every=2",
    "train.learning_rate=0.02",
    "train.milestones=[2]",
)

# The bars reach from edge to edge, so that by itself `recommended` would take them for the object and train plainly.
ACT = "method.parameters.act=always"
DECIDED = ("parameters.act=", "parameters.solve=batch", "parameters.preset=")  # settings that leave nothing to decide


def make_table():
    """Bars in three places over plain colours; half of the digits are for training."""
    generator = np.random.default_rng(0)
    labels = np.arange(DIGITS) % CLASSES
    digits = generator.integers(0, 40, (DIGITS, 28, 28)).astype(np.uint8)
    for row, label in enumerate(labels):
        digits[row, 4 + 7 * label : 10 + 7 * label] += 180
    backgrounds = [
        generator.integers(low, low + 60, (32, 32, 3)).astype(np.uint8)
        for low in np.linspace(0, 190, BACKGROUNDS).astype(int)
    ]
    rows = pd.DataFrame(
        {
            "id": [f"bar/{row:03d}" for row in range(DIGITS)],
            "label": labels,
            "subset": np.where(np.arange(DIGITS) < 75, "train", "test"),
        }
    )
    names = tuple(f"colour{k}" for k in range(BACKGROUNDS))
    return ComposedList("tiny", ("a", "b", "c"), names, rows, lambda: digits, lambda: backgrounds)


SOURCES.add(
    "tiny",
    Source(
        name="tiny",
        title="bars on colours",
        origin="made here",
        licence="MIT",
        layouts=("none",),
        read=lambda root: make_table(),
        counts={"train": 75, "test": DIGITS - 75},
        needs_root=False,
    ),
)


class PlainNet(nn.Module):
    """Without BatchNorm and dropout: what a sample gives does not depend on its batch."""

    def __init__(self, image_size):
        super().__init__()
        assert image_size == 12
        self.stage1 = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU())
        self.stage2 = nn.Sequential(nn.Conv2d(4, 8, 3, 2), nn.ReLU())
        self.out = nn.Sequential(nn.Flatten(), nn.Linear(32, 6), nn.Tanh())
        self.num_features = 6

    def forward(self, images):
        return self.out(self.stage2(self.stage1(images)))


def tiny_config(method="erm", *settings):
    always = [ACT] if method == "stablenet" and not any(word in text for text in settings for word in DECIDED) else []
    return assemble_config(settings=[*SETTINGS, f"method.name={method}", *always, *settings])


def tiny_run(folder: Path, method="erm", *settings, watcher=None, **runtime):
    """Train on the tiny source on the CPU, in `folder`."""
    options = Runtime(folder=folder, device="cpu", **runtime)
    return train(tiny_config(method, *settings), options, watcher)


def begin_again(run):
    """The method as a run began with it, on the CPU."""
    fabric = start_fabric("cpu", "32")
    with own_random_numbers(fabric.device):
        return make_algorithm(run.config, Runtime(), run.manifest, fabric)


class KillAt(Watcher):
    """Kills its own process, as `kill -9` does, some time after a step."""

    def __init__(self, step, delay):
        self._step, self._delay = step, delay

    def step(self, step, epoch, totals):
        if step >= self._step:
            self._step = 1 << 60
            threading.Timer(self._delay, os.kill, (os.getpid(), signal.SIGKILL)).start()


def child_processes():
    """Children start from a server that has imported everything: quick, and free of this process's threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.engine.tiny"])
    return context


def train_and_die(folder, settings, step, delay):
    torch.set_num_threads(1)
    tiny_run(folder, *settings, watcher=KillAt(step, delay), resume=True, checkpoint_minutes=0)


def read(folder, name="records.jsonl"):
    return (folder / name).read_bytes()


def epochs(run):
    return [record for record in run.records if record["kind"] == "epoch"]


class StopAt(Watcher):
    """Asks for a stop, as Ctrl-C does, at a step."""

    def __init__(self, step):
        self._step = step

    def step(self, step, epoch, totals):
        if step == self._step:
            signal.raise_signal(signal.SIGINT)
