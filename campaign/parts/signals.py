"""Signals at random moments of every verb that writes; the command, given again, ends with the same files.

A fork runs the command and is killed, interrupted or terminated; then the same command runs to its end. What it wrote
must be, byte for byte, what an undisturbed command writes, and nothing else may be left.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

from campaign.trial import Trial
from campaign.workshop import TABLE, tiny
from stablenet.algorithms import ALGORITHMS

TRAIN = ["train", "--folder", "out", "--resume", "--device", "cpu", "--checkpoint-minutes", "0"]
VERBS: dict[str, list[str]] = {
    **{name: [*TRAIN, "--method", name, *tiny()] for name in sorted(ALGORITHMS)},
    "d-sam": [*TRAIN, "--method", "d-sam", *tiny('model.name="resnet18"')],  # the paper's small network has no blocks
    "swad": [*TRAIN, "--method", "erm", *tiny('train.averaging="swad"', "train.swad.every=1")],
    "in-batches": [*TRAIN, "--method", "stablenet", *tiny('method.parameters.preset="paper"')],
    "evaluate": ["evaluate", "run"],
    "predict": ["predict", "run", "photos", "--output", "out/p.csv"],
    "export": ["export", "run", "--output", "out"],
    "report": ["report", "--runs", ".", "--panels", "0", "--output", "out"],
    "saliency": ["saliency", "run", "--samples", "2", "--count", "1", "--output", "out/page.html"],
    "weights": ["weights", "run", "--csv", "out.csv"],
    "split": ["data", "split", "folder", "classic", "--root", "photos", "--target", "west", "--out", "out/split.tsv"],
    "prepare": ["data", "prepare", "folder", "--root", "photos", "--store", "out"],
    "fit": ["table", "fit", "table.csv", "--target", "y", "--page", "out.html", "--weights", "out.csv"],
    "diagnose": ["diagnose", "table.csv", "--target", "y", "--output", "out.html"],
    "show": ["data", "show", "split.tsv", "--root", "photos", "--out", "out.png"],
    "torch": ["export", "run", "--format", "torch", "--output", "out"],
    "save": ["table", "fit", "table.csv", "--target", "y", "--save", "out.json"],
    "paper": ["paper", "--runs", ".", "--page", "out.md"],
}
BENCH = ["--runs", "runs", "--seeds", "1", "--device", "cpu", "--jobs", "1"]
# Verbs with processes of their own, each of which takes seconds to start.
SLOW_VERBS: dict[str, list[str]] = {
    "bench-run": ["bench", "run", "mine.toml", *BENCH],
    "bench-search": ["bench", "search", "mine.toml", "--methods", "erm", "--budget", "2", *BENCH],
    "demo": ["demo", "--output", "out", "--seeds", "2", "--epochs", "1", "--workers", "1"],
    "try": ["try", "many", "--output", "out", "--seeds", "2", "--minutes", "0.1", "--device", "cpu"],
}
ALL_VERBS = {**VERBS, **SLOW_VERBS}
MEASURING = ("try",)  # it plans by the time of a first step, so that two of its trainings differ
_HASH = re.compile(r"-[0-9a-f]{12}(?=/)")
_SLOW_SHARE = 0.08
_PATIENCE = 900.0  # seconds: files of 350 MB are compared, on a busy machine
_TRAININGS = 4  # of the quick verbs, trainings have most moments to be killed at
_TIMED = {"timing.jsonl", "run", "photos", "many", "table.csv", "split.tsv"}  # other in every run, or there before
_MOVING = re.compile(rb"\d+(\.\d+)? s\b|\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?|[0-9.]+ seconds")


def make(rng: Random, workshop: Path, folder: Path) -> Trial:
    verb, moments = draw(rng)
    told = ", ".join(f"{number.name} after {share:.0%}" for number, share in moments)
    call = describe(
        lambda: disturb(verb, moments, workshop, folder), f"stablenet {shlex.join(ALL_VERBS[verb])}: {told}"
    )
    kills = sum(number == signal.SIGKILL for number, _ in moments)
    return Trial(call=call, inputs=len(moments), kills={name_verb(verb): kills} if kills else {}, patience=_PATIENCE)


def draw(rng: Random) -> tuple[str, list[tuple[signal.Signals, float]]]:
    """A verb, and signals with their moments as shares of its time."""
    among = SLOW_VERBS if rng.random() < _SLOW_SHARE else VERBS
    group = rng.choice([*sorted({name_verb(verb) for verb in among}), *["train"] * (_TRAININGS * (among is VERBS))])
    verb = rng.choice(sorted(verb for verb in among if name_verb(verb) == group))
    kinds = (*[signal.SIGKILL] * 4, signal.SIGINT, signal.SIGTERM)
    return verb, [(rng.choice(kinds), rng.random()) for _ in range(rng.choice((1, 2, 3)))]


def name_verb(verb: str) -> str:
    """The command: "train" of every method, "data prepare"."""
    words = ALL_VERBS[verb]
    return " ".join(words[: 2 if words[0] in ("data", "bench", "table") else 1])


def describe(call: Callable[[], list[str]], text: str) -> Callable[[], list[str]]:
    call.__doc__ = text
    return call


def disturb(verb: str, moments: list[tuple[signal.Signals, float]], workshop: Path, folder: Path) -> list[str]:
    """Faults found; an undisturbed command is timed and read first."""
    whole, broken = folder / "whole", folder / "broken"
    start = time.monotonic()
    status = finish(start_command(ALL_VERBS[verb], prepare(whole, workshop), folder / "log"))
    if status != 0:
        return [f"undisturbed, it ends with {status}: {(folder / 'log').read_text()[-300:]}"]
    length = time.monotonic() - start
    prepare(broken, workshop)
    faults = []
    for number, share in moments:
        pid = start_command(ALL_VERBS[verb], broken, folder / "log")
        time.sleep(length * share)
        os.kill(pid, number)
        status = finish(pid)
        _wait_for_workers(broken)
        text = (folder / "log").read_text(errors="replace")
        if status not in (0, -number, 130, -signal.SIGTERM) or "Traceback" in text:
            faults.append(f"{number.name} ends with {status}: {text[-300:]}")
    status = finish(start_command(ALL_VERBS[verb], broken, folder / "log"))
    if status != 0:
        return [*faults, f"afterwards, it failed: {(folder / 'log').read_text()[-300:]}"]
    return [*faults, *(compare_names if verb in MEASURING else compare)(whole, broken)]


def _wait_for_workers(folder: Path) -> None:
    """Processes of a command that was killed write their checkpoints and end."""
    for _ in range(600):
        if not any(_works_in(place, folder) for place in Path("/proc").glob("[0-9]*")):
            return
        time.sleep(0.05)


def _works_in(place: Path, folder: Path) -> bool:
    try:
        return os.readlink(place / "cwd") == str(folder)
    except OSError:  # it has ended
        return False


def prepare(folder: Path, workshop: Path) -> Path:
    folder.mkdir()
    shutil.copytree(workshop / "runs" / "weighted", folder / "run")
    for name in ("photos", "many", "table.csv", "split.tsv"):
        (folder / name).symlink_to(workshop / name)
    (folder / "mine.toml").write_text(TABLE)
    return folder


def start_command(words: list[str], folder: Path, log: Path) -> int:
    """A fork that runs a command in a folder; its process number."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.chdir(folder)
        os.environ.update({"STABLENET_CACHE": str(folder / ".cache"), "COLUMNS": "160"})
        os.environ.pop("STABLENET_DATA", None)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        status = _run(words)
    finally:
        os._exit(status)


def _run(words: list[str]) -> int:
    """As the interpreter would: what escapes is a traceback."""
    import traceback

    from stablenet.cli.main import run

    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    sys.argv = ["stablenet", *words]
    try:
        run()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def finish(pid: int) -> int:
    """Exit status, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def compare(whole: Path, broken: Path) -> list[str]:
    """Files that differ, are missing, or are too many."""
    first, second = fingerprint(whole), fingerprint(broken)
    faults = [f"missing: {name}" for name in sorted(first.keys() - second.keys())]
    faults += [f"left behind: {name}" for name in sorted(second.keys() - first.keys())]
    faults += [f"differs: {name}" for name in sorted(first.keys() & second.keys()) if first[name] != second[name]]
    return faults[:4]


def compare_names(whole: Path, broken: Path) -> list[str]:
    """Files that are missing or too many, whatever they hold."""
    first, second = ({_HASH.sub("", name) for name in fingerprint(folder)} for folder in (whole, broken))
    return [f"missing: {name}" for name in sorted(first - second)] + [
        f"left: {name}" for name in sorted(second - first)
    ]


def fingerprint(folder: Path) -> dict[str, str]:
    """Hashes of all files that a command wrote, without clock times."""
    return {
        str(path.relative_to(folder)): _hash(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not _is_timed(path.relative_to(folder))
    }


def _is_timed(path: Path) -> bool:
    kept = path.parts[0] == "run" and path.name not in ("timing.jsonl",)
    named = path.name in _TIMED or path.parts[0] in (_TIMED - {"run"}) or ".bench" in path.parts
    return named or (not kept and ".cache" in path.parts)


@cache
def _hash(path: Path) -> str:
    data = path.read_bytes()
    if path.name == "evaluation.jsonl":  # a line for every evaluation
        data = b"\n".join(sorted(set(data.split(b"\n"))))
    data = _MOVING.sub(b"", data) if path.suffix in (".html", ".md", ".json") else data
    return hashlib.sha256(data.replace(b"/whole", b"/broken")).hexdigest()
