"""A training with a checkpoint after every step, watched for as long as asked for: what it held, and whether it grew.

python -m campaign.long_life --minutes 120
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from campaign.parts.soak import METHODS, judge, watch


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m campaign.long_life", description=__doc__)
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
