"""Loops whose length is set by the user: one that will take long says so once, as soon as that is known."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

MANY = 10_000  # steps from which a loop is timed; below, it is a plain range
LONG = 60.0  # seconds of a loop that are worth a word
_SAMPLE = 1.0  # seconds of a loop from which its whole length is estimated

_tell: ContextVar[Callable[[str, str], None] | None] = ContextVar("tell", default=None)


@contextmanager
def telling(tell: Callable[[str], None]) -> Iterator[None]:
    """Long loops in the block report their expected time, once for each kind; elsewhere they warn."""
    known: set[str] = set()

    def tell_once(what: str, text: str) -> None:
        if what not in known:
            known.add(what)
            tell(text)

    token = _tell.set(tell_once)
    try:
        yield
    finally:
        _tell.reset(token)


def count_steps(number: int, what: str) -> Iterable[int]:
    """`range(number)`. If it will take minutes, that is reported after the first second.   what: in a few words."""
    return range(number) if number < MANY else _count_timed(number, what)


def _count_timed(number: int, what: str) -> Iterator[int]:
    start, steps = time.monotonic(), iter(range(number))
    for step in steps:
        yield step
        seconds = time.monotonic() - start
        if seconds > _SAMPLE:
            _tell_long(seconds * number / (step + 1), number, what)
            break
    yield from steps


def _tell_long(seconds: float, number: int, what: str) -> None:
    if seconds < LONG:
        return
    text = f"{what}: {number:,} steps are expected to take up to {format_time(seconds)}; Ctrl-C stops them"
    tell = _tell.get()
    if tell is None:
        warnings.warn(text, stacklevel=2)
    else:
        tell(what, text)


def format_time(seconds: float) -> str:
    """At most two units: 45 s, 12 min, 3 h 20 min, 2 d 4 h."""
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
