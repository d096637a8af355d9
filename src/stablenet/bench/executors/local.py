"""Runs on this machine, as many at once as fit, in processes that serve one run after the other."""

from __future__ import annotations

import json
import select
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stablenet.bench.executors.base import RETRIES, Event, Tell, tell_outcome
from stablenet.bench.executors.places import Place
from stablenet.bench.executors.process import WorkerProcess
from stablenet.bench.perform import Order, Outcome
from stablenet.bench.work import INTERRUPTED
from stablenet.engine.interrupts import Interrupted

_POLL = 0.5  # seconds between two looks around while no worker has anything to tell
_GRACE = 60.0  # seconds workers have to write their checkpoints when they are asked to stop


@dataclass(frozen=True)
class _Task:
    """alone: on its device, because it ran out of memory beside others."""

    number: int
    order: Order
    tries: int = 0
    alone: bool = False


@dataclass
class _Working:
    task: _Task
    worker: WorkerProcess
    shared: bool  # whether others have been on its device since it began

    @property
    def place(self) -> Place:
        return self.worker.place


class LocalExecutor:
    """jobs: runs at once in all, None for as many as the places take.   logs: folder for what workers print.
    retries: how often a run whose worker was killed is taken up again, from its checkpoint.
    """

    def __init__(self, places: Sequence[Place], logs: Path, *, jobs: int | None = None, retries: int = RETRIES) -> None:
        self._places, self._logs, self._retries = list(places), logs, retries
        self._most = min(sum(place.most for place in places), jobs or sys.maxsize)
        self._working: list[_Working] = []
        self._idle: list[WorkerProcess] = []

    def run(self, orders: Sequence[Order], tell: Tell) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        waiting = [_Task(number, order) for number, order in enumerate(orders)]
        try:
            while len(outcomes) < len(orders):
                self._start_what_fits(waiting, tell)
                for done in self._wait():
                    self._working.remove(done)
                    again, outcome = self._judge(done)
                    if outcome is not None:
                        outcomes[done.task.number] = outcome
                        tell_outcome(tell, done.task.order, outcome)
                    elif again is not None:
                        waiting.insert(0, again)
                        tell(Event("retry", again.order, done.place.device))
        finally:
            self._stop()
        return [outcomes[number] for number in range(len(orders))]

    def _wait(self) -> list[_Working]:
        """Those whose workers have something to tell, or have died."""
        outputs = {each.worker.output: each for each in self._working}
        ready, _, _ = select.select(list(outputs), [], [], _POLL)
        return [outputs[output] for output in ready]

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
        idle = next((worker for worker in self._idle if worker.place == place), None)
        if idle is not None:
            self._idle.remove(idle)
        worker = idle or WorkerProcess(place, self._logs, task.order.threads)
        neighbours = [each for each in self._working if each.place == place]
        for each in neighbours:
            each.shared = True
        self._working.append(_Working(task, worker, bool(neighbours)))
        worker.send(replace(task.order, device=place.device))

    def _judge(self, done: _Working) -> tuple[_Task | None, Outcome | None]:
        """What to do again, or what came out."""
        task, told = done.task, done.worker.read()
        if told:
            self._idle.append(done.worker)
            outcome = Outcome(**json.loads(told))
            if outcome.state == "failed" and outcome.reason.startswith("out of memory") and done.shared:
                return replace(task, alone=True), None
            return None, outcome
        code = done.worker.end(_GRACE)
        if code == INTERRUPTED:
            raise Interrupted  # somebody stopped a worker: stop with it
        if task.tries < self._retries:
            return replace(task, tries=task.tries + 1), None
        how = f"{_name_end(code)}; see {done.worker.log}"
        return None, Outcome(task.order.name, "lost", f"its worker ended {task.tries + 1} times ({how})")

    def _stop(self) -> None:
        """Let all workers end; those that are at work write checkpoints first."""
        workers = [*self._idle, *(each.worker for each in self._working)]
        for worker in workers:
            worker.close()
        deadline = time.monotonic() + _GRACE
        for worker in workers:
            worker.end(max(0.0, deadline - time.monotonic()))
        self._working.clear()
        self._idle.clear()


def _name_end(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
