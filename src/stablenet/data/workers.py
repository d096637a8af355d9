"""Decoding in as many processes as there are cores: threads share Python's lock and gain little.

`python -m stablenet.data.workers` is one of the processes. This module and what it imports stay light, so that it
starts in a fraction of a second: no torch, no pandas.

joblib's loky would not do: it spares the user's script too and writes the same store about as fast, but where this
process was killed in the middle of decoding its processes were all there 30 s later, after Ctrl-C in a terminal the
pool hung, and the first answer came 0.2 s later (joblib 1.6 on Linux).
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
import zlib
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from stablenet.data.decode import decode, read_bytes
from stablenet.errors import UserError
from stablenet.processes import ChildProcess, Server, name_end

_WORTH = 2.0  # seconds of work for one process, below which starting others takes longer than it saves
_GRACE = 1.0  # seconds until a process that closed its pipe has an exit status


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
    crew: list[DecodeWorker] = []
    free: SimpleQueue[DecodeWorker] = SimpleQueue()

    def work(task: Task) -> list[Decoded]:
        worker = free.get()
        try:
            return worker.run(task)
        finally:
            free.put(worker)

    pool = ThreadPoolExecutor(workers)  # its threads only wait for the processes
    try:
        for _ in range(workers):
            crew.append(DecodeWorker())
            free.put(crew[-1])
        yield from pool.map(work, tasks)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in crew:
            worker.kill()
        pool.shutdown()  # no thread waits for a process any more: the pipes can be closed
        for worker in crew:
            worker.end()


class DecodeWorker:
    """A process that decodes tasks."""

    def __init__(self) -> None:
        self._process = ChildProcess("stablenet.data.workers")

    def run(self, task: Task) -> list[Decoded]:
        self._process.send(write_task(task))
        answer = self._process.receive()
        if answer is None:
            raise UserError(
                f"a decoding process ended ({name_end(self._process.end(_GRACE))}); where memory ran out, "
                "use fewer of them with --workers"
            )
        if isinstance(answer, dict):
            raise _read_error(answer)
        return [Decoded(*values) for values in answer]

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        self._process.end()


def write_task(task: Task) -> dict[str, Any]:
    return {**asdict(task), "root": str(task.root), "file": str(task.file)}


def read_task(values: dict[str, Any]) -> Task:
    """A task that travelled as JSON."""
    height, width = values["shape"]
    paths = {"root": Path(values["root"]), "file": Path(values["file"]), "paths": tuple(values["paths"])}
    return Task(**{**values, **paths, "shape": (height, width)})


def _write_error(error: OSError | MemoryError | OtherSize) -> dict[str, Any]:
    if isinstance(error, OSError):
        return {"error": "OSError", "words": [error.errno, error.strerror, error.filename]}
    return {"error": type(error).__name__, "words": [str(error)]}


def _read_error(values: dict[str, Any]) -> Exception:
    """An error that travelled as JSON; `OSError` becomes the kind that its number stands for."""
    kinds: dict[str, type[Exception]] = {kind.__name__: kind for kind in (OSError, MemoryError, OtherSize)}
    return kinds[values["error"]](*values["words"])


def _answer_task(values: dict[str, Any]) -> list[tuple[str, int, str]] | dict[str, Any]:
    """The records of a task, or the error it ended with, in plain values."""
    try:
        return [(record.content, record.crc, record.reason) for record in decode_task(read_task(values))]
    except (OSError, MemoryError, OtherSize) as error:
        return _write_error(error)


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


if __name__ == "__main__":
    sys.exit(Server(lambda values, tell: _answer_task(values)).run())
