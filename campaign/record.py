"""The log of a campaign, a line per trial, by which it resumes; and its summary."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from campaign.forks import Outcome

_SHOWN = 3  # failing commands for each fault
_SOME = 400  # characters of a command
# Places of the machine that tried it, of which a summary knows nothing.
_PLACES = (
    (re.compile(r"[^\s'\"=]*/workshop\b"), "workshop"),
    (re.compile(r"[^\s'\"=]*/trials/[^/\s]+/cwd/?"), "./"),
    (re.compile(r'File "[^"]*/'), 'File "'),  # of a traceback
    (re.compile(r"\S*/stablenet-error-\w+\.txt"), "stablenet-error.txt"),
)


def read_log(path: Path) -> dict[str, list[Outcome]]:
    """The outcomes of every trial by its name, the last one last; a line that was cut off does not count."""
    tries: dict[str, list[Outcome]] = {}
    for line in path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else ():
        outcome = Outcome(**json.loads(line))
        tries.setdefault(outcome.name, []).append(outcome)
    return tries


def append(path: Path, outcome: Outcome) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(outcome)) + "\n")


def summarise(tries: Iterable[Sequence[Outcome]], seed: int) -> dict[str, Any]:
    """Counts of every part and of kills by verb, and the shortest failing commands of every kind of fault.

    tries: of each trial; its last outcome counts. One that failed before and is clean now was mended in between.
    """
    parts: dict[str, Counter[str]] = defaultdict(Counter)
    kills: Counter[str] = Counter()
    failed, mended = [], []
    seconds = 0.0
    for outcomes in tries:
        last = outcomes[-1]
        counts = parts[last.name.partition(":")[0]]
        counts["tried"] += 1
        counts["inputs"] += last.inputs
        counts["failed" if last.fault else "skipped" if last.skipped else "clean"] += 1
        seconds += last.seconds
        kills.update(last.kills)
        found = [outcome for outcome in outcomes if outcome.fault]
        if found:
            counts["mended"] += not last.fault
            (failed if last.fault else mended).append(found[-1])
    total: Counter[str] = sum(parts.values(), Counter())
    return {
        "seed": seed,
        **{name: total[name] for name in ("tried", "inputs", "clean", "failed", "mended", "skipped")},
        "seconds": round(seconds),
        "parts": {name: dict(sorted(parts[name].items())) for name in sorted(parts)},
        "kills": dict(sorted(kills.items())),
        "faults": _gather(failed),
        "mended_faults": _gather(mended),
    }


def _gather(found: list[Outcome]) -> dict[str, Any]:
    """By kind of fault: how many, and the shortest commands."""
    kinds: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in found:
        kinds[hide_places(outcome.fault)[:60]].append(outcome)
    return {fault: _shortest(kinds[fault]) for fault in sorted(kinds)}


def _shortest(found: list[Outcome]) -> dict[str, Any]:
    few = sorted(found, key=lambda outcome: len(outcome.command))[:_SHOWN]
    shown = [
        {"trial": one.name, "command": hide_places(one.command)[:_SOME], "fault": hide_places(one.fault)} for one in few
    ]
    return {"count": len(found), "shortest": shown}


def hide_places(text: str) -> str:
    """The text without paths of the machine that tried it."""
    for pattern, name in _PLACES:
        text = pattern.sub(name, text)
    return text


def write_summary(path: Path, summary: dict[str, Any]) -> None:
    """In ASCII: a failing command may hold what is not valid UTF-8."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(summary, indent=1) + "\n", encoding="ascii")


def print_summary(summary: dict[str, Any]) -> None:
    for name, counts in summary["parts"].items():
        inputs = f" ({counts['inputs']:,} inputs)" if counts["inputs"] > counts["tried"] else ""
        skipped = f" ({counts['skipped']} skipped)" if counts.get("skipped") else ""
        mended = f" ({counts['mended']} failed before)" if counts.get("mended") else ""
        print(f"{name:12} tried {counts['tried']:5}  failed {counts.get('failed', 0):4}{mended}{inputs}{skipped}")
    print(f"{'all':12} tried {summary['tried']:5}  clean {summary['clean']:5}  failed {summary['failed']:4}")
    if summary["kills"]:
        print("kills:", ", ".join(f"{verb} {count}" for verb, count in summary["kills"].items()))
    for found in summary["faults"].values():
        one = found["shortest"][0]
        print(f"\n{found['count']} × {one['fault'][:300]}\n    {one['trial']}: {one['command'][:300]}")
