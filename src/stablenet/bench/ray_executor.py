"""Execution of runs on a Ray cluster, local or at an address. Workers must share this process's file system."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stablenet.bench.executors import RETRIES, Event, Tell, tell_outcome
from stablenet.bench.worker import RunOrder, RunOutcome, perform
from stablenet.errors import UserError
from stablenet.imports import import_extra

_POLL = 1.0  # seconds between polls of the cluster
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
                for ready in ray.wait(list(pending), timeout=_POLL)[0]:
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
    if host and port.isdigit():
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
