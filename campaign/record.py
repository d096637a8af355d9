"""The log of a campaign, a line per trial, by which it resumes; and its summary."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from campaign.forks import Outcome

_SHOWN = 3  # failing commands for each fault


def read_log(path: Path) -> dict[str, Outcome]:
    """All whole lines, by the name of their trial."""
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    outcomes = (Outcome(**json.loads(line)) for line in lines)
    return {outcome.name: outcome for outcome in outcomes}


def append(path: Path, outcome: Outcome) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(outcome)) + "\n")


def summarise(outcomes: Iterable[Outcome], seed: int) -> dict[str, Any]:
    """Counts of every part, and the shortest failing commands of every kind of fault."""
    parts: dict[str, Counter[str]] = defaultdict(Counter)
    failed: dict[str, list[Outcome]] = defaultdict(list)
    seconds = 0.0
    for outcome in outcomes:
        counts = parts[outcome.name.partition(":")[0]]
        counts["tried"] += 1
        counts["inputs"] += outcome.inputs
        counts["failed" if outcome.fault else "skipped" if outcome.skipped else "clean"] += 1
        seconds += outcome.seconds
        if outcome.fault:
            failed[outcome.fault[:60]].append(outcome)
    total: Counter[str] = sum(parts.values(), Counter())
    return {
        "seed": seed,
        "tried": total["tried"],
        "clean": total["clean"],
        "failed": total["failed"],
        "skipped": total["skipped"],
        "seconds": round(seconds),
        "parts": {name: dict(sorted(parts[name].items())) for name in sorted(parts)},
        "faults": {fault: _shortest(found) for fault, found in sorted(failed.items())},
    }


def _shortest(found: list[Outcome]) -> dict[str, Any]:
    few = sorted(found, key=lambda outcome: len(outcome.command))[:_SHOWN]
    shown = [{"trial": one.name, "command": one.command[:400], "fault": one.fault} for one in few]
    return {"count": len(found), "shortest": shown}


def write_summary(path: Path, summary: dict[str, Any]) -> None:
    """In ASCII: a failing command may hold what is not valid UTF-8."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(summary, indent=1) + "\n", encoding="ascii")


def print_summary(summary: dict[str, Any]) -> None:
    for name, counts in summary["parts"].items():
        inputs = f" ({counts['inputs']:,} inputs)" if counts["inputs"] > counts["tried"] else ""
        skipped = f" ({counts['skipped']} skipped)" if counts.get("skipped") else ""
        print(f"{name:12} tried {counts['tried']:5}  failed {counts.get('failed', 0):4}{inputs}{skipped}")
    print(f"{'all':12} tried {summary['tried']:5}  clean {summary['clean']:5}  failed {summary['failed']:4}")
    for found in summary["faults"].values():
        one = found["shortest"][0]
        print(f"\n{found['count']} × {one['fault'][:300]}\n    {one['trial']}: {one['command'][:300]}")
