"""A process that carries out orders, seen from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import IO

from stablenet.bench.executors.places import Place
from stablenet.bench.perform import Order
from stablenet.bench.work import write_order

_numbers = count()


class WorkerProcess:
    """Its own session, so that Ctrl-C reaches only whoever orders; it ends when its input closes."""

    def __init__(self, place: Place, logs: Path, threads: int) -> None:
        self.place = place
        logs.mkdir(parents=True, exist_ok=True)
        self.log = logs / f"worker-{os.getpid()}-{next(_numbers)}.log"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stablenet.bench.work"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
                env={**os.environ, "OMP_NUM_THREADS": str(threads)},
                start_new_session=True,
            )

    @property
    def output(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, order: Order) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # a worker that died while idle tells so on its output
            self._process.stdin.write(write_order(order))
            self._process.stdin.flush()

    def read(self) -> str:
        """A line, once there is one; nothing where the worker has died."""
        return self.output.readline()

    def close(self) -> None:
        """Ask it to end."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def end(self, grace: float) -> int:
        """Wait for its end, and make it end when the grace (in seconds) is over; its exit status."""
        self.close()
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
        code = self._process.wait()
        self.output.close()
        if self.log.exists() and not self.log.stat().st_size:
            self.log.unlink()
        return code
