"""Ctrl-C and termination, taken note of and obeyed between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """The run was stopped by its user; it can be resumed."""


class StopRequest:
    """Whether somebody asked the run to stop."""

    def __init__(self) -> None:
        self.asked = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """A second Ctrl-C does not wait for the step to end."""
        if self.asked:
            raise Interrupted
        self.asked = True


@contextmanager
def watch_signals() -> Iterator[StopRequest]:
    """Note SIGINT and SIGTERM while the block runs; only the main thread may listen to signals."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
