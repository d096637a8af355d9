"""How long `stablenet runs` and `stablenet report` take for a folder of many runs, which are copies of one.

python -m campaign.many_runs --runs 10000
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

from campaign.workshop import run_command, tiny
from stablenet.engine.config import hash_values

KEPT = ("status.json", "records.jsonl", "manifest.tsv", "timing.jsonl")


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m campaign.many_runs", description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    count = parser.parse_args(words).runs
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        run_command(["train", "--method", "erm", "--device", "cpu", "--folder", "one", *tiny()], folder, check=True)
        run_command(["evaluate", "one", "--device", "cpu"], folder, check=True)
        for seed in range(count):
            _copy(folder / "one", folder / "runs" / f"run-{seed:05d}", seed)
        shutil.rmtree(folder / "one")
        for verb in (["runs", "runs"], ["report", "--runs", "runs", "--panels", "0"]):
            before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            run_command(verb, folder, check=True)
            after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - start
            work = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            print(f"stablenet {' '.join(verb)}: {work:.1f} s of processor time, {wall:.1f} s in all")
    return 0


def _copy(one: Path, copy: Path, seed: int) -> None:
    """The files that a list and a report read; the config with another seed and its hash."""
    copy.mkdir(parents=True)
    described = json.loads((one / "config.json").read_text())
    old = described["hash"]
    described["config"]["seed"] = described["hashed"]["seed"] = seed
    described["hash"] = hash_values(described["hashed"])
    (copy / "config.json").write_text(json.dumps(described))
    for name in KEPT:
        (copy / name).write_bytes((one / name).read_bytes())
    evaluated = (one / "evaluation.jsonl").read_text()
    (copy / "evaluation.jsonl").write_text(evaluated.replace(old, described["hash"]))


if __name__ == "__main__":
    sys.exit(main())
