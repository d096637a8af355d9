"""Where runs are carried out: the common interface, processes on this machine, and a Ray cluster.

Both executors write the same files.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal, Protocol

from stablenet.bench.worker import RunOrder, RunOutcome, perform
from stablenet.engine.interrupts import Interrupted
from stablenet.errors import UserError
from stablenet.processes import INTERRUPTED, ChildProcess, name_end, wait_for
from stablenet.registry import import_extra
from stablenet.values import is_whole

RETRIES = 2  # times a run is resumed after its worker died
_POLL = 0.5  # seconds between polls while no worker has a message
_GRACE = 60.0  # seconds for workers to write their checkpoints when stopped
_USED_SHARE = 0.92  # of a GPU's free memory: the rest is lost to fragmentation
_MOST_ON_GPU = 8  # more runs on one GPU only slow each other down
_numbers = count()  # of the workers started by this process


@dataclass(frozen=True)
class Event:
    """An event of a run. where: the device or cluster that runs it.
    epoch: number of epochs done, for an "epoch" event; a cluster does not report epochs.
    """

    kind: Literal["start", "epoch", "retry", "finished", "failed", "lost"]
    order: RunOrder
    where: str = ""
    reason: str = ""
    epoch: int = 0


Tell = Callable[[Event], None]


class Executor(Protocol):
    """Executes orders, several in parallel; returns one outcome per order, in the same order."""

    def run(self, orders: Sequence[RunOrder], tell: Tell) -> list[RunOutcome]: ...


def tell_outcome(tell: Tell, order: RunOrder, outcome: RunOutcome) -> None:
    tell(Event(outcome.state, order, reason=outcome.reason))


@dataclass(frozen=True)
class Place:
    """device: cpu, cuda:0 …   capacity: gigabytes for runs, None if memory is not the limit.
    most: parallel runs.
    """

    device: str
    capacity: float | None
    most: int


def find_places(
    device: str = "auto", jobs: int | None = None, per_gpu: int | None = None, threads: int = 1
) -> list[Place]:
    """Devices of this machine on which runs can be executed, with their capacities.

    jobs: parallel runs on the CPU; None for as many as there are cores for their threads.
    per_gpu: parallel runs on one GPU; None for as many as fit in its memory.
    """
    from stablenet.engine.session import choose_device

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
    """Number of cores this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_gigabytes(number: int) -> float:
    import torch

    free, _ = torch.cuda.mem_get_info(number)
    return _USED_SHARE * free / 1e9


@dataclass(frozen=True)
class _Task:
    """alone: run alone on its device, because it ran out of memory next to others."""

    number: int
    order: RunOrder
    tries: int = 0
    alone: bool = False


@dataclass
class _Working:
    task: _Task
    place: Place
    worker: ChildProcess
    shared: bool  # whether it shared its device with others


class LocalExecutor:
    """Executes runs on this machine, as many in parallel as fit, in processes that serve one run after another.

    jobs: limit of parallel runs, None for as many as the places allow.   logs: folder for the workers' output.
    retries: how often a run whose worker was killed is resumed from its checkpoint.
    """

    def __init__(self, places: Sequence[Place], logs: Path, *, jobs: int | None = None, retries: int = RETRIES) -> None:
        self._places, self._logs, self._retries = list(places), logs, retries
        self._most = min(sum(place.most for place in places), jobs or sys.maxsize)
        self._working: list[_Working] = []
        self._idle: list[tuple[Place, ChildProcess]] = []

    def run(self, orders: Sequence[RunOrder], tell: Tell) -> list[RunOutcome]:
        """Execute all orders. An error raised by `tell` stops all runs at a checkpoint, like Ctrl-C."""
        outcomes: dict[int, RunOutcome] = {}
        waiting = [_Task(number, order) for number, order in enumerate(orders)]
        try:
            while len(outcomes) < len(orders):
                self._start_what_fits(waiting, tell)
                for each in self._wait():
                    answer = each.worker.receive()
                    if answer is not None and "epoch" in answer:
                        tell(Event("epoch", each.task.order, each.place.device, epoch=answer["epoch"]))
                        continue
                    self._working.remove(each)
                    again, outcome = self._judge(each, answer)
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
        """The runs whose workers have answered or died."""
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
        """Whether a task may start on a device; a run that is too large is tried alone."""
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

    def _judge(self, done: _Working, answer: dict[str, Any] | None) -> tuple[_Task | None, RunOutcome | None]:
        """The task to retry, or the outcome.   answer: of the worker, None if it died."""
        task = done.task
        if answer is not None:
            self._idle.append((done.place, done.worker))
            outcome = RunOutcome(**answer)
            if outcome.state == "failed" and outcome.reason.startswith("out of memory") and done.shared:
                return replace(task, alone=True), None
            return None, outcome
        code = done.worker.end(_GRACE)
        if code == INTERRUPTED:
            raise Interrupted  # a worker was stopped by the user: stop all
        if task.tries < self._retries:
            return replace(task, tries=task.tries + 1), None
        how = f"{name_end(code)}; see {done.worker.log}"
        return None, RunOutcome(task.order.name, "lost", f"its worker died {task.tries + 1} times ({how})")

    def _stop(self) -> None:
        """Stop all workers; those with a run write a checkpoint first."""
        workers = [*(worker for _, worker in self._idle), *(each.worker for each in self._working)]
        for worker in workers:
            worker.close()
        deadline = time.monotonic() + _GRACE
        for worker in workers:
            worker.end(max(0.0, deadline - time.monotonic()))
        self._working.clear()
        self._idle.clear()


_POLL_CLUSTER = 1.0  # seconds between polls of the cluster
_KNOCK = 10.0  # seconds to wait for a connection to the cluster
LOCAL = "local"  # the address that starts a cluster on this machine


class RayExecutor:
    """address: of a running cluster ("auto", host:port, ray://host:port), or "local".
    per_gpu: parallel runs on one GPU.   jobs: limit of parallel runs, None for as many as the cluster allows.
    retries: how often a run of a lost worker is resumed by another one.
    """

    def __init__(
        self,
        address: str,
        *,
        device: str = "auto",
        per_gpu: int = 1,
        jobs: int | None = None,
        retries: int = RETRIES,
    ) -> None:
        self._address, self._device, self._per_gpu = address, device, per_gpu
        self._most, self._retries = jobs or sys.maxsize, retries

    def run(self, orders: Sequence[RunOrder], tell: Tell) -> list[RunOutcome]:
        ray = import_ray()
        _connect(ray, self._address)
        try:
            return self._run(ray, orders, tell)
        finally:
            ray.shutdown()

    def _run(self, ray: Any, orders: Sequence[RunOrder], tell: Tell) -> list[RunOutcome]:
        share, device = self._choose_device(ray.cluster_resources())
        waiting, pending, outcomes = list(enumerate(orders)), dict[Any, int](), dict[int, RunOutcome]()
        try:
            while waiting or pending:
                while waiting and len(pending) < self._most:
                    number, order = waiting.pop(0)
                    pending[self._submit(ray, replace(order, device=device), share)] = number
                    tell(Event("start", order, f"Ray at {self._address}"))
                for ready in ray.wait(list(pending), timeout=_POLL_CLUSTER)[0]:
                    number = pending.pop(ready)
                    outcomes[number] = _fetch(ray, ready, orders[number])
                    tell_outcome(tell, orders[number], outcomes[number])
        except BaseException:
            _cancel(ray, list(pending))
            raise
        return [outcomes[number] for number in range(len(orders))]

    def _submit(self, ray: Any, order: RunOrder, share: float) -> Any:
        task = ray.remote(perform).options(
            num_cpus=order.threads,
            num_gpus=share,
            max_retries=self._retries,
            scheduling_strategy="SPREAD",
            name=order.name,
        )
        return task.remote(order)

    def _choose_device(self, resources: dict[str, float]) -> tuple[float, str]:
        """Share of a GPU per run, and the device that a worker uses."""
        gpus = resources.get("GPU", 0)
        if self._device == "cpu" or (self._device == "auto" and not gpus):
            return 0.0, "cpu"
        if not gpus:
            raise UserError(f"the Ray cluster has no GPU for --device {self._device}: use cpu or auto")
        return 1 / self._per_gpu, "cuda"


def import_ray() -> Any:
    return import_extra("ray", "cluster", "a run with --ray-address")


def _connect(ray: Any, address: str) -> None:
    try:
        _knock(address)
        ray.init(None if address == LOCAL else address, logging_level="ERROR", log_to_driver=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"no Ray cluster at {address!r}: {error}") from error


def _knock(address: str) -> None:
    """Try to connect to a host and port first: Ray would wait for minutes without an answer."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and is_whole(port):
        socket.create_connection((host, int(port)), timeout=_KNOCK).close()


def _fetch(ray: Any, ready: Any, order: RunOrder) -> RunOutcome:
    """The outcome of a finished task; Ray has already retried it if its worker died."""
    try:
        outcome: RunOutcome = ray.get(ready)
    except ray.exceptions.RayError as error:
        return RunOutcome(order.name, "lost", f"its worker was lost too often: {str(error).splitlines()[0]}")
    if outcome.state == "finished" and not (Path(order.folder) / "config.json").exists():
        reason = f"it is not in {order.folder}: all machines of the cluster must share the folder of runs"
        return RunOutcome(order.name, "failed", reason)
    return outcome


def _cancel(ray: Any, pending: list[Any]) -> None:
    """Interrupt the workers, which write checkpoints."""
    for task in pending:
        ray.cancel(task, force=False)
    ray.wait(pending, num_returns=len(pending), timeout=30)
