"""`python -m campaign`: try, judge, record, summarise."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

from campaign.forks import Make, import_everything, run_trials
from campaign.page import write_page
from campaign.parts import PARTS
from campaign.record import append, print_summary, read_log, summarise, write_summary
from campaign.trial import Trial
from campaign.workshop import make_workshop


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m campaign", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=5000, help="trials, divided among the parts by their shares")
    parser.add_argument("--only", nargs="*", help="parts, or single trials such as settings:12")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "stablenet-campaign")
    parser.add_argument("--out", type=Path, help="file for the summary, beside which a README.md is written")
    parser.add_argument("--minutes", type=float, help="stop then; the same command goes on")
    parser.add_argument("--keep", action="store_true", help="keep the folders of clean trials, too")
    parser.add_argument("--again", action="store_true", help="repeat the trials that failed")
    given = parser.parse_args(words)
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would trials
    given.work.mkdir(parents=True, exist_ok=True)
    make_workshop(given.work / "workshop")
    import_everything()
    log = given.work / f"seed{given.seed}.jsonl"
    done = read_log(log)
    names = choose(given.count, given.only)
    asked = set(given.only or ())  # a single trial that is named is repeated
    left = [name for name in names if name not in done or name in asked or (given.again and done[name][-1].fault)]
    print(f"{len(names) - len(left)} of {len(names)} trials were done before", flush=True)
    trials = make_trials(left, given.seed, given.work / "workshop", given.minutes)
    for number, outcome in enumerate(run_trials(trials, given.work / "trials", given.jobs, given.keep), 1):
        append(log, outcome)
        if outcome.fault or number % 250 == 0:
            print(f"{number}/{len(left)} {outcome.name} {outcome.fault[:160]}", flush=True)
    done = read_log(log)
    summary = {"asked": len(names), **summarise((done[name] for name in names if name in done), given.seed)}
    print_summary(summary)
    if given.out is not None:
        write_summary(given.out, summary)
        write_page(given.out.with_name("README.md"), summary, "make campaign")
    return 1 if summary["failed"] else 0


def choose(count: int, only: list[str] | None) -> list[str]:
    """Names of trials, the parts in turn, so that an early stop has tried something of everything."""
    singles = [name for name in only or () if ":" in name]
    chosen = [name for name in only or () if ":" not in name] or ([] if only else list(PARTS))
    total = sum(PARTS[name].share for name in chosen) or 1
    numbers = {name: round(count * PARTS[name].share / total) for name in chosen}
    places = [(k / numbers[name], f"{name}:{k}") for name in chosen for k in range(numbers[name])]
    return singles + [name for _, name in sorted(places)]


def make_trials(
    names: list[str], seed: int, workshop: Path, minutes: float | None = None
) -> Iterator[tuple[str, Make]]:
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    for name in names:
        if time.monotonic() > end:
            return
        yield name, partial(_make, name, seed, workshop)


def _make(name: str, seed: int, workshop: Path, folder: Path) -> Trial:
    return PARTS[name.partition(":")[0]].make(Random(f"{seed}/{name}"), workshop, folder)


if __name__ == "__main__":
    sys.exit(main())
