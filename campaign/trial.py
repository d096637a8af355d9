"""One trial: a command or a call with generated inputs, and the judgement of how it ended."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Expect = Literal["any", "refused", "accepted"]
STATUSES = (0, 1, 2, 130)
_LEFTOVERS = re.compile(r"^\..*\.partial")


@dataclass(frozen=True)
class Ending:
    """How a command ended in its folder."""

    status: int
    out: str
    err: str
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Trial:
    """words: of the command.   call: instead of a command; returns the faults it found.   inputs: it stands for.
    expect: "refused" is status 2 with nothing left on disk.   check: of the ending, a fault or "".
    limits: resource limits by name, such as FSIZE.   environment: added to the own.
    memory: bytes that it may map beyond what is mapped before.   patience: seconds after which it is interrupted, which
    has to end it at once.   skipped: why this machine cannot try it; it is then counted, and not run.
    kills: of processes, by verb.
    """

    words: Sequence[str] = ()
    call: Callable[[], list[str]] | None = None
    inputs: int = 1
    expect: Expect = "any"
    check: Callable[[Ending], str] | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    memory: int = 6 << 30  # protects the machine
    patience: float = 60.0
    kills: Mapping[str, int] = field(default_factory=dict)
    skipped: str = ""


def judge(trial: Trial, ending: Ending, before: set[str]) -> str:
    """What is wrong with an ending, "" if nothing is.   before: files that were in the folder."""
    return (
        _judge_status(ending)
        or _judge_expectation(trial, ending, list_files(ending.folder) - before)
        or (trial.check(ending) if trial.check is not None else "")
    )


def _judge_status(ending: Ending) -> str:
    if "Traceback (most recent call last)" in ending.err + ending.out:
        return "traceback"
    if ending.status == 70:
        return "last net: " + ending.err.strip()[-300:]
    if ending.status not in STATUSES:
        return f"exit status {ending.status}"
    if ending.status == 2:
        return _judge_message(ending.err)
    return ""


def _judge_message(err: str) -> str:
    """A refusal says something: one paragraph, not a page."""
    if "Usage:" in err:
        return ""
    _, found, message = err.rpartition("error: ")
    if not found or len(message.strip()) < 10:
        return "empty message"
    return "endless message" if len(message) > 5000 else ""


def _judge_expectation(trial: Trial, ending: Ending, new: set[str]) -> str:
    leftovers = [name for name in new if _LEFTOVERS.match(Path(name).name)]
    if leftovers:
        return f"leftover: {leftovers[0]}"
    if trial.expect == "refused":
        if ending.status != 2:
            return f"accepted (status {ending.status}) what had to be refused"
        if new:
            return f"left behind by a refusal: {sorted(new)[0]}"
    if trial.expect == "accepted" and ending.status != 0:
        return f"refused (status {ending.status}): {ending.err.strip()[-200:]}"
    return ""


def list_files(folder: Path) -> set[str]:
    """All files and folders below a folder, without those of the trial itself."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.name not in ("stdout", "stderr", "trial.json", "cache") and "cache" not in path.parts
    }


def write_verdict(path: Path, fault: str, status: int) -> None:
    path.write_text(json.dumps({"fault": fault, "status": status}), encoding="utf-8")
