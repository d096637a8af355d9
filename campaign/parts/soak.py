"""A long life in short: a training with a checkpoint after every step keeps its memory and its open files.

    python -m campaign.parts.soak --minutes 120

watches one for as long as asked for, and prints what it held.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import tempfile
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


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m campaign.parts.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--method", choices=METHODS, default="stablenet")
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "cwd"
        folder.mkdir()
        held, status = watch(given.method, folder, 60 * given.minutes)
        lines = (folder / "out" / "timing.jsonl").read_text().count("\n")
    tenths = [held[(len(held) - 1) * k // 10] for k in range(1, 11)]
    print(f"{given.method}, {given.minutes:g} minutes, {lines} lines of timing, ended with {status}")
    print("MiB of memory at each tenth:", *(each.memory >> 20 for each in tenths))
    print("open files at each tenth:   ", *(each.files for each in tenths))
    faults = judge(held)
    print(*(faults or ["flat"]), sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
