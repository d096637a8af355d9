"""What `stablenet bench` says while runs are under way."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from stablenet.bench.executors import Event

INTERRUPTED = 130  # what a shell expects of a program stopped by Ctrl-C


class Teller:
    """One line for everything that happens but epochs, on the error stream."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0

    def __call__(self, event: Event) -> None:
        if event.kind == "start":
            typer.echo(f"started   {event.order.name} on {event.where}", err=True)
        elif event.kind == "retry":
            typer.echo(f"again     {event.order.name}: its worker ended, it goes on from its checkpoint", err=True)
        elif event.kind != "epoch":
            self._done += 1
            why = f": {event.reason}" if event.reason else ""
            typer.echo(f"{event.kind:9} {event.order.name} ({self._done}/{self._total}){why}", err=True)


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C and termination alike: workers write their checkpoints, then the command ends."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on where the runs stand", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
