"""Decoding in as many processes as there are cores: threads share Python's lock and gain little.

A worker is a fresh interpreter that is handed tasks through a pipe. It is started by command and not by
`multiprocessing`, which would run the user's own script once more in every worker. This module and what it imports
stay light, so that a worker starts in a fraction of a second: no torch, no pandas.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
import time
import zlib
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from stablenet.data.decode import decode, read_bytes
from stablenet.errors import UserError

_WORTH = 2.0  # seconds of work for one process, below which starting others takes longer than it saves
_START = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from stablenet.data.workers import serve
serve()
"""


@dataclass(frozen=True)
class Task:
    """Decode the images at `paths` in `root` to `shape` = (H, W), into `file` from row `first` on.

    resize: whether images of another size are resized; otherwise they raise `OtherSize`.
    """

    root: Path
    paths: tuple[str, ...]
    shape: tuple[int, int]
    resize: bool
    file: Path
    first: int


@dataclass(frozen=True)
class Decoded:
    """One image's record: hash of the source bytes and checksum of the pixels, or why there are none."""

    content: str = ""
    crc: int = 0
    reason: str = ""


class OtherSize(Exception):
    """An image has not the size that all should have."""


def run_tasks(tasks: list[Task], workers: int) -> Generator[list[Decoded], None, None]:
    """The records of every task, in order. Close the generator to stop early: that ends the workers at once."""
    start = time.perf_counter()
    yield decode_task(tasks[0])
    rest = tasks[1:]
    expected = (time.perf_counter() - start) * len(rest)
    if workers == 1 or expected < _WORTH:
        yield from map(decode_task, rest)
    else:
        yield from _share_tasks(rest, min(workers, len(rest)))


def _share_tasks(tasks: list[Task], workers: int) -> Iterator[list[Decoded]]:
    crew: list[Worker] = []
    free: SimpleQueue[Worker] = SimpleQueue()

    def work(task: Task) -> list[Decoded]:
        worker = free.get()
        try:
            return worker.run(task)
        finally:
            free.put(worker)

    pool = ThreadPoolExecutor(workers)  # its threads only wait for the processes
    try:
        for _ in range(workers):
            crew.append(Worker())
            free.put(crew[-1])
        yield from pool.map(work, tasks)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in crew:
            worker.end()
        pool.shutdown()


class Worker:
    """A process that runs tasks. It ends with this one, however that ends: its pipe closes then."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the process that asked, which ends its workers
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._back = self._process.stdin, self._process.stdout
        self._send(sys.path)

    def run(self, task: Task) -> list[Decoded]:
        try:
            self._send(task)
            answer: list[Decoded] | Exception = pickle.load(self._back)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            raise UserError(
                f"a decoding process ended with status {self._process.wait()}; where memory ran out, "
                "use fewer of them with --workers"
            ) from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._back.close()
        with suppress(BrokenPipeError):  # a task that was never taken may still be in the buffer
            self._to.close()

    def _send(self, message: object) -> None:
        pickle.dump(message, self._to)
        self._to.flush()


def serve() -> None:
    """A worker's life: tasks from the standard input, their records or errors back, until nothing more can come."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a decoder prints must not get between the answers
    while True:
        try:
            task = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: list[Decoded] | Exception = decode_task(task)
        except (OSError, MemoryError, OtherSize) as error:
            answer = error
        pickle.dump(answer, answers)
        answers.flush()


def decode_task(task: Task) -> list[Decoded]:
    """Run a task in this process. An image that cannot be decoded is a record; a full disk is an error."""
    file = os.open(task.file, os.O_WRONLY)
    try:
        return [_decode_one(task, path, task.first + k, file) for k, path in enumerate(task.paths)]
    finally:
        os.close(file)


def _decode_one(task: Task, path: str, row: int, file: int) -> Decoded:
    try:
        data = read_bytes(task.root, path)
        pixels = decode(data, task.shape if task.resize else None)
    except MemoryError:
        raise
    except Exception as error:  # decoders raise whatever they like on broken bytes
        return Decoded(reason=f"{error}" or type(error).__name__)
    if pixels.shape[:2] != task.shape:
        raise OtherSize(path)
    # Plain writes, not a writable mapping: there a full disk would kill the process without a word.
    write_at(file, pixels.data.cast("B"), row * pixels.nbytes)
    return Decoded(hashlib.sha256(data).hexdigest(), zlib.crc32(pixels.data))


def write_at(file: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written
