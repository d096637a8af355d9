"""Processes that serve orders: decoding and runs share them. An order and an answer are a line of JSON each.

The process is a fresh interpreter, started by command and not by `multiprocessing`, which would run the user's own
script once more in every child. Nothing heavy belongs here: a child starts in a fraction of a second.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

INTERRUPTED = 130  # as a shell expects of a program stopped by a signal
_PIECE = 65536  # bytes read from a pipe at once
_IN, _OUT, _ERRORS = range(3)  # the standard streams

Send = Callable[[Any], None]
Perform = Callable[[Any, Send], Any]  # an order and a way to tell of its progress; returns the answer


class ChildProcess:
    """`python -m module`, seen from its parent; the module runs a `Server`.

    It has its own session, so that Ctrl-C reaches only the parent. It ends when its input closes, which it does
    however the parent ends.   threads: of its mathematics, None as here.   log: a file for what it prints, None for
    this process's error stream.
    """

    def __init__(self, module: str, *, threads: int | None = None, log: Path | None = None) -> None:
        self.log = log
        with log.open("wb") if log else nullcontext() as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_make_environment(threads),
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._back = self._process.stdin, self._process.stdout
        self._arrived = b""  # answers that are not received yet, the last one perhaps in part

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_answer(self) -> bool:
        """Whether a whole answer has been read already."""
        return b"\n" in self._arrived

    def fileno(self) -> int:
        """Of the pipe that answers come through, for `select`."""
        return self._back.fileno()

    def send(self, order: Any) -> None:
        """A child that has ended shows that when its answer is received."""
        with suppress(BrokenPipeError):
            self._to.write(_write_line(order))
            self._to.flush()

    def receive(self) -> Any | None:
        """The next answer, once there is one; None where the child has ended."""
        while not self.has_answer:
            piece = os.read(self.fileno(), _PIECE)
            if not piece:
                return None
            self._arrived += piece
        line, _, self._arrived = self._arrived.partition(b"\n")
        return json.loads(line)

    def close(self) -> None:
        """Ask it to end."""
        with suppress(BrokenPipeError):  # an order that was never taken may still be in the buffer
            self._to.close()

    def kill(self) -> None:
        self._process.kill()

    def end(self, grace: float = 0.0) -> int:
        """Wait for its end, and kill it when the grace (in seconds) is over; its exit status. An empty log goes."""
        self.close()
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
        code = self._process.wait()
        self._back.close()
        if self.log is not None and self.log.exists() and not self.log.stat().st_size:
            self.log.unlink()
        return code


def wait_for(children: Sequence[ChildProcess], timeout: float) -> list[ChildProcess]:
    """Those with an answer to receive, and those that have ended; none of them after `timeout` seconds."""
    answered = [child for child in children if child.has_answer]
    if answered:
        return answered
    ready, _, _ = select.select(children, [], [], timeout)
    return ready


def name_end(code: int) -> str:
    """An exit status in words."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def _make_environment(threads: int | None) -> dict[str, str]:
    """A child finds modules where this process does, and nowhere else: not in the current folder."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    return environment if threads is None else {**environment, "OMP_NUM_THREADS": str(threads)}


class Server:
    """The child's side: takes orders from the input until it closes; an order under way is then stopped by SIGTERM.

    Orders are performed in the main thread, where signals arrive.
    """

    def __init__(self, perform: Perform) -> None:
        self._perform = perform
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._busy = self._closed = False
        self._answers = os.dup(_OUT)
        os.dup2(_ERRORS, _OUT)  # whatever is printed must not get between the answers

    def run(self) -> int:
        """The exit status."""
        threading.Thread(target=self._listen, daemon=True).start()
        while line := self._lines.get():
            self._busy = True
            if self._closed:
                return INTERRUPTED
            try:
                answer = self._perform(json.loads(line), self._send)
            except KeyboardInterrupt:
                return INTERRUPTED
            self._busy = False
            self._send(answer)
        return 0

    def _listen(self) -> None:
        for line in sys.stdin:
            self._lines.put(line)
        self._closed = True
        self._lines.put("")
        if self._busy:
            os.kill(os.getpid(), signal.SIGTERM)

    def _send(self, values: Any) -> None:
        data = _write_line(values)
        with suppress(BrokenPipeError):  # the parent is gone: the closed input says so, and stops the order
            while data:
                data = data[os.write(self._answers, data) :]


def _write_line(values: Any) -> bytes:
    """In ASCII, whatever the encoding of names of files is."""
    return json.dumps(values).encode("ascii") + b"\n"
