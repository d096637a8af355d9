"""Where runs are carried out: what executors have in common, and the one that uses processes of this machine.

`stablenet.bench.ray_executor` uses a cluster. The files that runs leave are the same.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal, Protocol

from stablenet.bench.worker import RunOrder, RunOutcome
from stablenet.engine.interrupts import Interrupted
from stablenet.errors import UserError
from stablenet.processes import INTERRUPTED, ChildProcess, name_end, wait_for

RETRIES = 2  # times a run is taken up again after its worker died
_POLL = 0.5  # seconds between two looks around while no worker has anything to tell
_GRACE = 60.0  # seconds workers have to write their checkpoints when they are asked to stop
_USED_SHARE = 0.92  # of a GPU's free memory: the allocator's pieces do not fit without a rest
_MOST_ON_GPU = 8  # beyond that, runs of one GPU only take each other's time
_numbers = count()  # of the workers this process has started


@dataclass(frozen=True)
class Event:
    """What happens to a run, for whoever watches. where: the device or cluster that does it.
    epoch: how many are done, where an epoch has ended; a cluster does not tell of epochs.
    """

    kind: Literal["start", "epoch", "retry", "finished", "failed", "lost"]
    order: RunOrder
    where: str = ""
    reason: str = ""
    epoch: int = 0


Tell = Callable[[Event], None]


class Executor(Protocol):
    """Carries out orders, several at once; every order has an outcome, in the same order."""

    def run(self, orders: Sequence[RunOrder], tell: Tell) -> list[RunOutcome]: ...


def tell_outcome(tell: Tell, order: RunOrder, outcome: RunOutcome) -> None:
    tell(Event(outcome.state, order, reason=outcome.reason))


@dataclass(frozen=True)
class Place:
    """device: cpu, cuda:0 …   capacity: gigabytes for runs, None where memory is not what limits them.
    most: runs at once.
    """

    device: str
    capacity: float | None
    most: int


def find_places(
    device: str = "auto", jobs: int | None = None, per_gpu: int | None = None, threads: int = 1
) -> list[Place]:
    """Where runs can be carried out on this machine: cores, or GPUs by their memory.

    jobs: on the CPU, runs at once; None takes as many as there are cores for their threads.
    per_gpu: runs at once on one GPU; None takes as many as fit its memory.
    """
    from stablenet.engine.devices import choose_device

    for name, number in (("jobs", jobs), ("per-gpu", per_gpu), ("threads", threads)):
        if number is not None and number < 1:
            raise UserError(f"--{name} must be at least 1, got {number}")
    kind, chosen = choose_device(device)
    if kind == "cpu":
        return [Place("cpu", None, jobs or max(1, count_cores() // threads))]
    import torch

    numbers = chosen if isinstance(chosen, list) else range(torch.cuda.device_count())
    return [Place(f"cuda:{number}", _free_gigabytes(number), per_gpu or _MOST_ON_GPU) for number in numbers]


def count_cores() -> int:
    """Cores this process may use, which on shared machines are fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_gigabytes(number: int) -> float:
    import torch

    free, _ = torch.cuda.mem_get_info(number)
    return _USED_SHARE * free / 1e9


@dataclass(frozen=True)
class _Task:
    """alone: on its device, because it ran out of memory beside others."""

    number: int
    order: RunOrder
    tries: int = 0
    alone: bool = False


@dataclass
class _Working:
    task: _Task
    place: Place
    worker: ChildProcess
    shared: bool  # whether others have been on its device since it began


class LocalExecutor:
    """Runs on this machine, as many at once as fit, in processes that serve one run after the other.

    jobs: runs at once in all, None for as many as the places take.   logs: folder for what workers print.
    retries: how often a run whose worker was killed is taken up again, from its checkpoint.
    """

    def __init__(self, places: Sequence[Place], logs: Path, *, jobs: int | None = None, retries: int = RETRIES) -> None:
        self._places, self._logs, self._retries = list(places), logs, retries
        self._most = min(sum(place.most for place in places), jobs or sys.maxsize)
        self._working: list[_Working] = []
        self._idle: list[tuple[Place, ChildProcess]] = []

    def run(self, orders: Sequence[RunOrder], tell: Tell) -> list[RunOutcome]:
        """An error that `tell` raises stops all runs at their checkpoints, as Ctrl-C does."""
        outcomes: dict[int, RunOutcome] = {}
        waiting = [_Task(number, order) for number, order in enumerate(orders)]
        try:
            while len(outcomes) < len(orders):
                self._start_what_fits(waiting, tell)
                for each in self._wait():
                    told = each.worker.receive()
                    if told is not None and "epoch" in told:
                        tell(Event("epoch", each.task.order, each.place.device, epoch=told["epoch"]))
                        continue
                    self._working.remove(each)
                    again, outcome = self._judge(each, told)
                    if outcome is not None:
                        outcomes[each.task.number] = outcome
                        tell_outcome(tell, each.task.order, outcome)
                    elif again is not None:
                        waiting.insert(0, again)
                        tell(Event("retry", again.order, each.place.device))
        finally:
            self._stop()
        return [outcomes[number] for number in range(len(orders))]

    def _wait(self) -> list[_Working]:
        """Those whose workers have something to tell, or have died."""
        ready = wait_for([each.worker for each in self._working], _POLL)
        return [each for each in self._working if each.worker in ready]

    def _start_what_fits(self, waiting: list[_Task], tell: Tell) -> None:
        for task in list(waiting):
            if len(self._working) >= self._most:
                return
            place = next((place for place in self._places if self._fits(task, place)), None)
            if place is not None:
                waiting.remove(task)
                self._start(task, place)
                tell(Event("start", task.order, place.device))

    def _fits(self, task: _Task, place: Place) -> bool:
        """A run that is too large for a device is tried there alone."""
        there = [each for each in self._working if each.place == place]
        if not there:
            return True
        if len(there) >= place.most or task.alone or any(each.task.alone for each in there):
            return False
        if place.capacity is None:
            return True
        return task.order.gigabytes + sum(each.task.order.gigabytes for each in there) <= place.capacity

    def _start(self, task: _Task, place: Place) -> None:
        worker = self._take_idle(place) or self._start_worker(task.order.threads)
        neighbours = [each for each in self._working if each.place == place]
        for each in neighbours:
            each.shared = True
        self._working.append(_Working(task, place, worker, bool(neighbours)))
        worker.send(asdict(replace(task.order, device=place.device)))

    def _take_idle(self, place: Place) -> ChildProcess | None:
        for idle in self._idle:
            if idle[0] == place:
                self._idle.remove(idle)
                return idle[1]
        return None

    def _start_worker(self, threads: int) -> ChildProcess:
        self._logs.mkdir(parents=True, exist_ok=True)
        log = self._logs / f"worker-{os.getpid()}-{next(_numbers)}.log"
        return ChildProcess("stablenet.bench.worker", threads=threads, log=log)

    def _judge(self, done: _Working, told: dict[str, Any] | None) -> tuple[_Task | None, RunOutcome | None]:
        """What to do again, or what came out.   told: by the worker, None where it has died."""
        task = done.task
        if told is not None:
            self._idle.append((done.place, done.worker))
            outcome = RunOutcome(**told)
            if outcome.state == "failed" and outcome.reason.startswith("out of memory") and done.shared:
                return replace(task, alone=True), None
            return None, outcome
        code = done.worker.end(_GRACE)
        if code == INTERRUPTED:
            raise Interrupted  # somebody stopped a worker: stop with it
        if task.tries < self._retries:
            return replace(task, tries=task.tries + 1), None
        how = f"{name_end(code)}; see {done.worker.log}"
        return None, RunOutcome(task.order.name, "lost", f"its worker ended {task.tries + 1} times ({how})")

    def _stop(self) -> None:
        """Let all workers end; those that are at work write checkpoints first."""
        workers = [*(worker for _, worker in self._idle), *(each.worker for each in self._working)]
        for worker in workers:
            worker.close()
        deadline = time.monotonic() + _GRACE
        for worker in workers:
            worker.end(max(0.0, deadline - time.monotonic()))
        self._working.clear()
        self._idle.clear()
