"""What trials break: images, tables, a store, and finished and interrupted runs, made once for a campaign."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

DOMAINS, CLASSES = ("east", "west"), ("cat", "dog")
TINY = (
    "data.parameters.train_size=60",
    "data.parameters.test_size=20",
    "train.epochs=2",
    "train.batch_size=16",
    "train.milestones=[]",
)  # fmt: skip

TABLE = """title = "Mine"
[settings]
data.parameters = { train_size = 60, test_size = 20 }
train = { epochs = 1, max_steps = 1, milestones = [], batch_size = 16 }
[[column]]
id = "one"
title = "One"
recipe = "embedded-dr0.9"
[[column]]
id = "two"
recipe = "embedded-dr0.9"
[[row]]
id = "erm"
method = "erm"
[[row]]
id = "ours"
title = "Ours"
method = "stablenet"
parameters = { preset = "paper" }
"""


def tiny(*more: str) -> list[str]:
    """Options of a training of a second."""
    return [word for setting in (*TINY, *more) for word in ("--set", setting)]


def make_workshop(folder: Path) -> None:
    """Make everything, unless it is there."""
    if (folder / "done").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make_photos(folder / "photos")
    make_photos(folder / "many", 16)
    make_table(folder / "table.csv")
    _run(folder, "train", "--method", "erm", "--runs", "runs", "--folder", "runs/plain", *tiny())
    _run(folder, "train", "--method", "stablenet", "--folder", "runs/weighted", *tiny())
    _run(folder, "evaluate", "runs/plain", "runs/weighted")
    _run(folder, "data", "prepare", "folder", "--root", "photos", "--store", "store")
    _run(folder, "data", "split", "folder", "classic", "--root", "photos", "--target", "west", "--out", "split.tsv")
    _interrupt(folder)
    (folder / "done").touch()


def make_photos(folder: Path, count: int = 6) -> None:
    """domain/class/image, 16 × 16."""
    rng = np.random.default_rng(0)
    for domain in DOMAINS:
        for label in CLASSES:
            (folder / domain / label).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / domain / label / f"{number}.png")


def make_table(path: Path, rows: int = 60) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 3))
    lines = ["a,b,c,site,y"]
    lines += [f"{a:.4f},{b:.4f},{c:.4f},s{k % 3},{int(a + b > 0)}" for k, (a, b, c) in enumerate(x)]
    path.write_text("\n".join(lines) + "\n")


def _interrupt(folder: Path) -> None:
    """A run with a checkpoint: the plain one, stopped after its first epoch."""
    from stablenet.engine.config import assemble_config
    from stablenet.engine.interrupts import Interrupted
    from stablenet.engine.monitor import Watcher
    from stablenet.engine.session import Runtime
    from stablenet.engine.train import train

    class Stop(Watcher):
        def epoch(self, record: dict[str, object], note: str = "") -> None:
            raise Interrupted

    config = assemble_config(None, None, [*TINY, 'method.name="erm"'])
    try:
        train(config, Runtime(runs=folder / "runs", folder=folder / "runs" / "stopped", device="cpu"), Stop())
    except Interrupted:
        return
    raise RuntimeError("the training was not interrupted")


def _run(folder: Path, *words: str) -> None:
    run_command(words, folder, check=True)


def run_command(words: Sequence[str], folder: Path, check: bool = False) -> subprocess.CompletedProcess[str]:
    """A real process, for what needs one."""
    command = [sys.executable, "-m", "stablenet", *words]
    done = subprocess.run(command, cwd=folder, env=make_environment(folder), capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"stablenet {' '.join(words)}: {done.stderr}")
    return done


def make_environment(folder: Path) -> dict[str, str]:
    """Of a process of its own that finds the same modules, with a cache in its folder."""
    environment = {name: value for name, value in os.environ.items() if name != "STABLENET_DATA"}
    environment |= {"OMP_NUM_THREADS": "1", "STABLENET_CACHE": str(folder / "cache")}
    environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    return environment
