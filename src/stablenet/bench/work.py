"""`python -m stablenet.bench.work`: orders as lines of JSON on the input, their outcomes as lines on the output.

Whoever orders keeps the input open. When it closes the worker ends; a run under way stops at a checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import redirect_stdout
from dataclasses import asdict
from queue import Queue
from typing import Any

from stablenet.bench.perform import Order, perform
from stablenet.engine.interrupts import Interrupted

INTERRUPTED = 130  # as a shell expects of a program stopped by a signal


class Worker:
    """Takes orders from the input until it closes."""

    def __init__(self) -> None:
        self._lines: Queue[str] = Queue()
        self._busy = False

    def run(self) -> int:
        threading.Thread(target=self._listen, daemon=True).start()
        while line := self._lines.get():
            self._busy = True
            try:
                with redirect_stdout(sys.stderr):
                    outcome = perform(read_order(line))
            except Interrupted:
                return INTERRUPTED
            self._busy = False
            print(json.dumps(asdict(outcome)), flush=True)
        return 0

    def _listen(self) -> None:
        for line in sys.stdin:
            self._lines.put(line)
        self._lines.put("")
        if self._busy:
            os.kill(os.getpid(), signal.SIGTERM)


def write_order(order: Order) -> str:
    return json.dumps(asdict(order)) + "\n"


def read_order(line: str) -> Order:
    values: dict[str, Any] = json.loads(line)
    lists: dict[str, Any] = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Order(**values | lists)


if __name__ == "__main__":
    sys.exit(Worker().run())
