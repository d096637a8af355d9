"""A long life in short: a training with a checkpoint after every step keeps its memory and its open files.

`campaign.long_life` watches one for as long as asked for.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from campaign.parts.signals import describe, finish, start_command
from campaign.trial import Trial
from campaign.workshop import tiny

SECONDS = 15.0  # of a trial
EVERY = 0.5
MORE_MEMORY, MORE_FILES = 24 << 20, 2  # of the last half beside the second quarter: allocators round and keep
METHODS = ("erm", "stablenet", "in-batches", "mixup", "swad")


@dataclass(frozen=True)
class Held:
    """What a process held at a moment.   memory: resident bytes.   files: open descriptors."""

    memory: int
    files: int


def make(rng: Random, workshop: Path, folder: Path) -> Trial:
    method = rng.choice(METHODS)
    told = f"soak: {SECONDS:g} s of {method}, a checkpoint after every step"
    return Trial(call=describe(lambda: judge(watch(method, folder, SECONDS)[0]), told), patience=300.0)


def watch(method: str, folder: Path, seconds: float) -> tuple[list[Held], int]:
    """A training that is interrupted after some seconds: what it held meanwhile, and how it ended."""
    settings = ["train.epochs=1000000", "train.log_every=100"]
    settings += ['method.parameters.preset="paper"'] * (method == "in-batches")
    settings += ['train.averaging="swad"', "train.swad.every=5"] * (method == "swad")
    name = {"in-batches": "stablenet", "swad": "erm"}.get(method, method)
    words = ["train", "--method", name, "--device", "cpu", "--folder", "out", "--checkpoint-minutes", "0"]
    pid = start_command([*words, *tiny(*settings)], folder, folder.parent / "log")
    held, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(EVERY)
        if os.waitpid(pid, os.WNOHANG)[0]:
            raise RuntimeError(f"it ended by itself: {(folder.parent / 'log').read_text(errors='replace')[-300:]}")
        held.append(look(pid))
    os.kill(pid, signal.SIGINT)
    return held, finish(pid)


def look(pid: int) -> Held:
    place = Path("/proc") / str(pid)
    pages = int((place / "statm").read_text().split()[1])
    return Held(pages * resource.getpagesize(), len(list((place / "fd").iterdir())))


def judge(held: Sequence[Held]) -> list[str]:
    """Whether the last half held more than the second quarter: the first one is the start."""
    count = len(held)
    early, late = held[count // 4 : count // 2], held[count // 2 :]
    memory = max(each.memory for each in late) - max(each.memory for each in early)
    files = max(each.files for each in late) - max(each.files for each in early)
    faults = [f"memory grew by {memory >> 20} MiB"] if memory > MORE_MEMORY else []
    return faults + ([f"open files grew by {files}"] if files > MORE_FILES else [])
