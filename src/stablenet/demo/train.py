"""Training the demo's runs, several processes at once, each of one thread: results do not depend on their number."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from queue import Empty
from typing import Any

import torch

from stablenet.engine.config import RunConfig
from stablenet.engine.folder import FINISHED
from stablenet.engine.interrupts import Interrupted
from stablenet.engine.runs import Run, list_runs, load_run
from stablenet.engine.session import Runtime
from stablenet.engine.train import train
from stablenet.engine.watch import Watcher
from stablenet.evaluation.evaluate import RECORDS, evaluate_run
from stablenet.evaluation.selection import DEFAULT_RULE
from stablenet.files import read_lines

RULES = (DEFAULT_RULE, "last")
Report = Callable[[str, int], None]  # a run's name, epochs done
_POLL = 0.2  # seconds between two looks at what the workers tell


class _Teller(Watcher):
    """Tells every finished epoch."""

    def __init__(self, name: str, tell: Report) -> None:
        self._name, self._tell = name, tell

    def epoch(self, record: dict[str, Any], note: str = "") -> None:
        self._tell(self._name, record["epoch"])


def train_all(configs: list[RunConfig], runs: Path, workers: int, report: Report) -> list[Run]:
    """Train and evaluate every config; finished runs are taken as they are, broken ones go on."""
    there = [find_finished(config, runs) for config in configs]
    left = [config for config, run in zip(configs, there, strict=True) if run is None]
    for run in there:
        if run is not None:
            report(run.config.name, run.config.train.epochs)
    trained = iter(_train_left(left, runs, min(workers, len(left)), report) if left else ())
    return [run if run is not None else next(trained) for run in there]


def find_finished(config: RunConfig, runs: Path) -> Run | None:
    """The run of this config if it has been trained and evaluated."""
    for run in list_runs(runs):
        if run.config == config and run.status["state"] == FINISHED:
            evaluated = {line["rule"] for line in read_lines(run.path / RECORDS)}
            return run if evaluated >= set(RULES) else None
    return None


def _train_left(configs: list[RunConfig], runs: Path, workers: int, report: Report) -> list[Run]:
    context = multiprocessing.get_context("spawn")
    told, stop = context.Queue(), context.Event()
    with ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(told, stop)) as pool:
        futures = [pool.submit(_train_one, config, runs) for config in configs]
        try:
            for name, epoch in _listen(told, futures):
                report(name, epoch)
            _raise_failure(futures)
            return [load_run(future.result()) for future in futures]
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _listen(told: Any, futures: list[Future[Path]]) -> Iterator[tuple[str, int]]:
    """What the workers tell, until all are done or one has failed."""
    while True:
        over = all(future.done() for future in futures) or any(
            future.done() and future.exception() is not None for future in futures
        )
        try:
            yield told.get(timeout=_POLL)
        except Empty:
            if over:
                return


def _raise_failure(futures: list[Future[Path]]) -> None:
    """The error that stopped the others, not their being stopped."""
    errors = [future.exception() for future in futures if future.done()]
    for error in errors:
        if error is not None and not isinstance(error, Interrupted):
            raise error


_told: Any = None  # the worker's end of the queue
_stop: Any = None  # set when no further run may start: a pool hands out some tasks ahead


def _start_worker(told: Any, stop: Any) -> None:
    global _told, _stop
    _told, _stop = told, stop
    torch.set_num_threads(1)


def _train_one(config: RunConfig, runs: Path) -> Path:
    if _stop.is_set():
        raise Interrupted
    watcher = _Teller(config.name, lambda name, epoch: _told.put((name, epoch)))
    try:
        run = train(config, Runtime(runs=runs, device="cpu", resume=True), watcher)
    except BaseException:
        _stop.set()
        raise
    for rule in RULES:
        evaluate_run(run, rule=rule, device="cpu")
    watcher.epoch({"epoch": config.train.epochs})
    return run.path
