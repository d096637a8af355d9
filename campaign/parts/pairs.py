"""Two processes at once on one folder: both end well or one says that it is taken, and the files are those of one."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

from campaign.parts.signals import VERBS, compare, describe, finish, prepare, start_command
from campaign.trial import Trial


def make(rng: Random, workshop: Path, folder: Path) -> Trial:
    verb = rng.choice(sorted(VERBS))
    delay = rng.choice((0.0, 0.01, 0.1, 0.5))
    return Trial(call=describe(lambda: race(verb, delay, workshop, folder), f"two at once: {verb}"), inputs=2)


def race(verb: str, delay: float, workshop: Path, folder: Path) -> list[str]:
    whole, shared = prepare(folder / "whole", workshop), prepare(folder / "broken", workshop)
    if finish(start_command(VERBS[verb], whole, folder / "log")) != 0:
        return [f"alone, it failed: {(folder / 'log').read_text()[-300:]}"]
    first = start_command(VERBS[verb], shared, folder / "first")
    time.sleep(delay)
    second = start_command(VERBS[verb], shared, folder / "second")
    statuses = [finish(first), finish(second)]
    texts = [(folder / name).read_text(errors="replace") for name in ("first", "second")]
    faults = [text[-300:] for text in texts if "Traceback" in text]
    if sorted(statuses) not in ([0, 0], [0, 2]):
        faults.append(f"statuses {statuses}: {texts[0][-200:]} | {texts[1][-200:]}")
    return faults or compare(whole, shared)
