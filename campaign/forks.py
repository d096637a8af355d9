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
from dataclasses import dataclass
from pathlib import Path

from campaign.trial import Ending, Trial, judge, list_files, write_verdict

HANG = 60.0  # seconds after which a trial hangs
_OWN_MEMORY = 6 << 30  # bytes that a trial may map beyond what is mapped already, to protect the machine
Make = Callable[[Path], Trial]


@dataclass(frozen=True)
class Outcome:
    """fault: "" for a clean end.   command: as one would type it.   inputs: it stands for."""

    name: str
    fault: str
    command: str
    inputs: int
    seconds: float


@dataclass
class _Running:
    name: str
    folder: Path
    start: float


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
    """The outcome of a trial that has ended, or hangs."""
    seconds = time.monotonic() - running.start
    ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended and seconds < HANG:
        return None
    fault = ""
    if not ended:
        _kill(pid)
        fault = "hang"
    elif os.WIFSIGNALED(status):
        fault = f"killed by signal {os.WTERMSIG(status)}"
    said = _read(running.folder / "trial.json")
    verdict = _read(running.folder / "verdict.json")
    fault = fault or str(verdict.get("fault", "ended without a verdict"))
    return Outcome(running.name, fault, str(said.get("command", "")), int(said.get("inputs", 1)), seconds)


def _read(path: Path) -> dict[str, object]:
    try:
        found: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
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
        told = {"command": _join(trial), "inputs": trial.inputs}
        (folder / "trial.json").write_text(json.dumps(told), encoding="utf-8")
        before = list_files(cwd)
        status = _run(trial, folder)
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

    if trial.call is not None:
        return getattr(trial.call, "__doc__", "") or "a call"
    chosen = [f"{name}={value}" for name, value in trial.environment.items()]
    limits = [f"ulimit -{name} {value};" for name, value in trial.limits.items()]
    return " ".join([*limits, *chosen, shlex.join(["stablenet", *trial.words])])


def _run(trial: Trial, folder: Path) -> int | list[str]:
    limit_memory()
    if trial.call is not None:
        return trial.call()
    os.environ.pop("STABLENET_DATA", None)
    os.environ.update({"COLUMNS": "160", "STABLENET_CACHE": str(folder / "cache"), **trial.environment})
    captures = [_Capture(number) for number in (1, 2)]
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    status = _run_limited(trial)
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


def limit_memory() -> None:
    """What is mapped now and some gigabytes more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _OWN_MEMORY,) * 2)


def import_everything() -> None:
    """So that no fork has to; computes nothing, because threads do not survive a fork."""
    import importlib
    import pkgutil

    import pandas  # noqa: F401
    import sklearn.ensemble  # noqa: F401
    import torch

    import stablenet

    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(stablenet.__path__, "stablenet."):
        if not module.name.endswith("__main__") and "kernels" not in module.name:
            importlib.import_module(module.name)
