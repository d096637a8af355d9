"""Worker processes, used for decoding and for runs. Each order and each answer is one line of JSON.

The process is a fresh interpreter, started by command and not by `multiprocessing`, which would run the user's own
script again in every child. Keep the imports light, so that a child starts in a fraction of a second.

Threads read the pipes: Windows can wait for several sockets at once, but not for several pipes.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from queue import SimpleQueue
from typing import Any

INTERRUPTED = 130  # the exit status shells expect after a signal
_PIECE = 65536  # bytes per read from a pipe
_IN, _OUT, _ERRORS = range(3)  # the standard streams
_LAST = 1.0  # seconds to read what an ended child left in its pipe
_news = threading.Condition()  # notified whenever a child has answered or ended

Send = Callable[[Any], None]
Perform = Callable[[Any, Send], Any]  # takes an order and a function to report progress; returns the answer


class ChildProcess:
    """The parent's handle on a child `python -m module`, whose module runs a `Server`.

    It has its own session, on Windows its own process group, so that Ctrl-C reaches only the parent. It ends when its
    input closes, which it does however the parent ends.   threads: of its mathematics, None as here.   log: a file for
    what it prints, None for this process's error stream.
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
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._back = self._process.stdin, self._process.stdout
        self._answers: deque[bytes] = deque()  # not received yet
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_news(self) -> bool:
        """Whether `receive` would not wait: there is a complete answer, or the child has ended."""
        return bool(self._answers) or self._ended

    def send(self, order: Any) -> None:
        """If the child has ended, this shows when its answer is received."""
        with _closed_pipes():
            self._to.write(_write_line(order))
            self._to.flush()

    def receive(self) -> Any | None:
        """The next answer, once there is one; None where the child has ended."""
        with _news:
            _news.wait_for(lambda: self.has_news)
            return json.loads(self._answers.popleft()) if self._answers else None

    def _read(self) -> None:
        """Whole lines; what a child that died left of one is no answer."""
        rest = b""
        with self._back:
            while piece := os.read(self._back.fileno(), _PIECE):
                *lines, rest = (rest + piece).split(b"\n")
                with _news:
                    self._answers.extend(lines)
                    _news.notify_all()
        with _news:
            self._ended = True
            _news.notify_all()

    def close(self) -> None:
        """Ask it to end."""
        with _closed_pipes():  # an order that was never taken may still be in the buffer
            self._to.close()

    def kill(self) -> None:
        self._process.kill()

    def end(self, grace: float = 0.0) -> int:
        """Close, wait up to `grace` seconds, then kill; return the exit status. An empty log is deleted."""
        self.close()
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
        code = self._process.wait()
        self._reader.join(_LAST)
        if self.log is not None and self.log.exists() and not self.log.stat().st_size:
            self.log.unlink()
        return code


def wait_for(children: Sequence[ChildProcess], timeout: float) -> list[ChildProcess]:
    """Those with an answer to receive, and those that have ended; none of them after `timeout` seconds."""
    with _news:
        _news.wait_for(lambda: any(child.has_news for child in children), timeout)
        return [child for child in children if child.has_news]


def name_end(code: int) -> str:
    """Describe an exit status."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def _make_environment(threads: int | None) -> dict[str, str]:
    """The child's environment: it imports modules from where this process does, and not from the current folder."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    return environment if threads is None else {**environment, "OMP_NUM_THREADS": str(threads)}


class Server:
    """The child's side: performs orders until its input closes; an order in progress is then stopped by SIGTERM.

    Orders run in the main thread, which receives signals.
    """

    def __init__(self, perform: Perform) -> None:
        self._perform = perform
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._busy = self._closed = False
        self._answers = os.dup(_OUT)
        os.dup2(_ERRORS, _OUT)  # printed output must not mix with the answers

    def run(self) -> int:
        """Serve until the input closes; return the exit status."""
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
            _stop_main_thread()

    def _send(self, values: Any) -> None:
        data = _write_line(values)
        with _closed_pipes():  # the parent is gone: the closed input says so, and stops the order
            while data:
                data = data[os.write(self._answers, data) :]


def _stop_main_thread() -> None:
    """SIGTERM for the main thread, even asleep; on Windows `os.kill` would end the process without its handlers."""
    thread = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and thread is not None:
        signal.pthread_kill(thread, signal.SIGTERM)
    else:
        signal.raise_signal(signal.SIGTERM)


@contextmanager
def _closed_pipes() -> Iterator[None]:
    """Ignore that a pipe has no reader any more, which Windows may report as an invalid argument."""
    try:
        yield
    except OSError as error:
        if not isinstance(error, BrokenPipeError) and error.errno != errno.EINVAL:
            raise


def _write_line(values: Any) -> bytes:
    """Encode as a line of ASCII, whatever the encoding of file names."""
    return json.dumps(values).encode("ascii") + b"\n"
