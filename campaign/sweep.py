"""A sweep of many runs whose workers are killed at random: complete in the end, and the same bytes as undisturbed.

python -m campaign.sweep --runs 200
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from campaign.parts.signals import compare
from campaign.workshop import TABLE, make_environment

ROWS = 2  # of the table, each a run for every seed
EVERY = 15.0  # seconds between kills, on average: a worker takes a while to begin again


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m campaign.sweep", description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(words)
    seeds = ",".join(map(str, range(given.runs // ROWS)))
    bench = ["bench", "run", "mine.toml", "--seeds", seeds, "--device", "cpu", "--jobs", str(given.jobs)]
    with tempfile.TemporaryDirectory() as place:
        whole, broken = (_begin(Path(place) / name) for name in ("whole", "broken"))
        statuses = [_sweep(bench, whole, None)[0]]
        status, kills = _sweep(bench, broken, Random(given.seed))
        statuses.append(status)
        again = 0
        while statuses[-1] not in (0,) and again < 3:  # runs whose workers died too often
            again += 1
            statuses.append(_sweep(bench, broken, None)[0])
        found = [len(list((folder / "runs").glob("*/last.safetensors"))) for folder in (whole, broken)]
        faults = compare(whole, broken)
    print(f"{found[0]} and {found[1]} finished runs, {kills} workers killed, {again} times given again")
    print(*(faults or ["complete, and the same bytes"]), sep="\n")
    return 1 if faults or found != [given.runs] * 2 else 0


def _begin(folder: Path) -> Path:
    folder.mkdir()
    (folder / "mine.toml").write_text(TABLE)
    return folder


def _sweep(words: list[str], folder: Path, rng: Random | None) -> tuple[int, int]:
    """Exit status, and how many workers were killed.   rng: of the kills, None for none."""
    command = [sys.executable, "-m", "stablenet", *words]
    started = subprocess.Popen(
        command, cwd=folder, env=make_environment(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    kills = 0
    while started.poll() is None:
        time.sleep(0.2 if rng is None else rng.expovariate(1 / EVERY))
        workers = [] if rng is None else list_children(started.pid)
        if rng is not None and workers:
            os.kill(rng.choice(workers), signal.SIGKILL)
            kills += 1
    return started.returncode, kills


def list_children(parent: int) -> list[int]:
    """Process numbers of the processes that a process has started."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(place.name))
    return found


if __name__ == "__main__":
    sys.exit(main())
