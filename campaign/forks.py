"""Trials in forks of one process that has imported everything: a command costs its own work and nothing else."""

from __future__ import annotations

import gc
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from campaign.trial import Ending, Trial, judge, list_files, write_verdict

HANG = 30.0  # seconds that an interrupted trial may take to end
Make = Callable[[Path], Trial]


@dataclass(frozen=True)
class Outcome:
    """fault: "" for a clean end.   command: as one would type it.   inputs: it stands for.   skipped: why not tried.
    kills: of processes, by verb.
    """

    name: str
    fault: str
    command: str
    inputs: int
    seconds: float
    skipped: str = ""
    kills: dict[str, int] = field(default_factory=dict)


@dataclass
class _Running:
    """interrupted: when it was, 0.0 before."""

    name: str
    folder: Path
    start: float
    interrupted: float = 0.0


def run_trials(trials: Iterator[tuple[str, Make]], work: Path, jobs: int, keep: bool = False) -> Iterator[Outcome]:
    """Run every trial in its own fork and folder, `jobs` at once; outcomes come as trials end."""
    running: dict[int, _Running] = {}
    exhausted = False
    gc.freeze()  # or the first collection of every fork would copy all pages
    try:
        while running or not exhausted:
            while len(running) < jobs and not exhausted:
                following = next(trials, None)
                if following is None:
                    exhausted = True
                else:
                    pid, started = _start(*following, work)
                    running[pid] = started
            for pid in list(running):
                outcome = _look(pid, running[pid])
                if outcome is not None:
                    _clear(running.pop(pid).folder, keep or bool(outcome.fault))
                    yield outcome
            time.sleep(0.002)
    finally:
        for pid in running:
            _kill(pid)
        gc.unfreeze()


def _start(name: str, make: Make, work: Path) -> tuple[int, _Running]:
    folder = work / name.replace(":", "-")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _live(make, folder)
    return pid, _Running(name, folder, time.monotonic())


def _look(pid: int, running: _Running) -> Outcome | None:
    """The outcome of a trial that has ended, or hangs. One that is at work for long is interrupted first."""
    now = time.monotonic()
    seconds = now - running.start
    ended, status = os.waitpid(pid, os.WNOHANG)
    fault = ""
    if not ended:
        if not _is_hanging(pid, running, now):
            return None
        _kill(pid)
        fault = "hang"
    elif os.WIFSIGNALED(status):
        fault = f"killed by signal {os.WTERMSIG(status)}"
    said = _read(running.folder / "trial.json")
    verdict = _read(running.folder / "verdict.json")
    fault = fault or str(verdict.get("fault", "ended without a verdict"))
    if running.interrupted and not fault and not _has_told(running.folder):
        fault = "at work for long without a word of how long"
    command, inputs, skipped = str(said.get("command", "")), int(said.get("inputs", 1)), str(said.get("skipped", ""))
    return Outcome(running.name, fault, command, inputs, seconds, skipped, said.get("kills", {}))


def _has_told(folder: Path) -> bool:
    """Whether a command has shown a bar, or said what time it expects to take."""
    told = (folder / "stderr").read_text(errors="replace")
    return "\u2501" in told or "expected" in told


def _is_hanging(pid: int, running: _Running, now: float) -> bool:
    """Whether it has not ended although it was interrupted, as it is now if its patience has run out."""
    if running.interrupted:
        return now - running.interrupted > HANG
    patience = float(_read(running.folder / "trial.json").get("patience", Trial.patience))
    if now - running.start > patience:
        os.kill(pid, signal.SIGINT)
        running.interrupted = now
    return False


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _kill(pid: int) -> None:
    """The fork and all it has started: it leads its own session."""
    try:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def _clear(folder: Path, keep: bool) -> None:
    if not keep:
        for path in [folder, *folder.rglob("*")]:
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)


def _live(make: Make, folder: Path) -> None:
    """The fork's whole life; it never returns."""
    os.setsid()
    verdict = folder / "verdict.json"
    cwd = folder / "cwd"
    cwd.mkdir()
    os.chdir(cwd)
    try:
        trial = make(cwd)
        told = {
            "command": _join(trial),
            "inputs": trial.inputs,
            "patience": trial.patience,
            "skipped": trial.skipped,
            "kills": dict(trial.kills),
        }
        (folder / "trial.json").write_text(json.dumps(told), encoding="utf-8")
        before = list_files(cwd)
        status: int | list[str] = [] if trial.skipped else _run(trial, folder)
        if isinstance(status, list):
            fault = "; ".join(status)[:500]
            write_verdict(verdict, fault, 0)
        else:
            out, err = ((folder / name).read_text(errors="replace") for name in ("stdout", "stderr"))
            write_verdict(verdict, judge(trial, Ending(status, out, err, cwd), before), status)
    except BaseException:
        text = traceback.format_exc()
        write_verdict(verdict, f"the campaign itself failed: {text[-500:]}", 0)
    os._exit(0)


def _join(trial: Trial) -> str:
    import shlex

    if trial.call is not None or trial.skipped:
        return getattr(trial.call, "__doc__", "") or "a call"
    chosen = [f"{name}={value}" for name, value in trial.environment.items()]
    limits = [f"ulimit -{name} {value};" for name, value in trial.limits.items()]
    limits += [f"memory {trial.memory >> 20} MiB;"] if trial.memory != Trial.memory else []
    return " ".join([*limits, *chosen, shlex.join(["stablenet", *trial.words])])


def _run(trial: Trial, folder: Path) -> int | list[str]:
    if trial.call is not None:
        limit_memory(trial.memory)
        return trial.call()
    os.environ.pop("STABLENET_DATA", None)
    os.environ.update({"COLUMNS": "160", "STABLENET_CACHE": str(folder / "cache"), **trial.environment})
    captures = [_Capture(number) for number in (1, 2)]
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    limit_memory(trial.memory)
    status = _run_limited(trial)
    limit_memory(Trial.memory)
    for name, stream, capture in zip(("stdout", "stderr"), (sys.stdout, sys.stderr), captures, strict=True):
        stream.close()
        (folder / name).write_bytes(capture.end())
    return status


class _Capture:
    """What is written to a descriptor, by way of a pipe: a file would be under the limits of the trial."""

    def __init__(self, number: int) -> None:
        self._read, write = os.pipe()
        os.dup2(write, number)
        os.close(write)
        self._pieces: list[bytes] = []
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        while piece := os.read(self._read, 1 << 16):
            self._pieces.append(piece)

    def end(self) -> bytes:
        """Call when the descriptor is closed; a child that still holds it is not waited for."""
        self._thread.join(2.0)
        return b"".join(self._pieces)


def _run_limited(trial: Trial) -> int:
    from stablenet.cli.main import run

    for name, value in trial.limits.items():
        number = getattr(resource, f"RLIMIT_{name}")
        resource.setrlimit(number, (value, resource.getrlimit(number)[1]))
    sys.argv = ["stablenet", *trial.words]
    try:
        run()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        for name in trial.limits:
            number = getattr(resource, f"RLIMIT_{name}")
            resource.setrlimit(number, (resource.getrlimit(number)[1],) * 2)
    return 0


def limit_memory(more: int) -> None:
    """What is mapped now and `more` bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))


def import_everything() -> None:
    """So that no fork has to; computes nothing, because threads do not survive a fork."""
    import encodings
    import importlib
    import pkgutil

    import pandas  # noqa: F401
    import sklearn.ensemble  # noqa: F401
    import torch

    import stablenet

    torch.set_num_threads(1)
    for codec in ("unicode_escape", "idna", "latin_1", "utf_16", "utf_8_sig", "cp437"):
        importlib.import_module(f"{encodings.__name__}.{codec}")
    for module in pkgutil.walk_packages(stablenet.__path__, "stablenet."):
        if not module.name.endswith("__main__") and "kernels" not in module.name:
            importlib.import_module(module.name)
