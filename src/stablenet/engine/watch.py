"""Who watches a run: told of every step and epoch; reading figures is the watcher's decision, because it waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stablenet.engine.totals import Totals


class Watcher:
    """Does nothing; a progress bar overrides what it shows."""

    def decode(self, done: int, total: int) -> None:
        """Images decoded for the first time."""

    def begin(self, folder: Path, done: int, total: int) -> None:
        """Training starts, or goes on, at step `done` of `total`."""

    def step(self, step: int, epoch: int, totals: Totals) -> None:
        """A step was done (from 1)."""

    def epoch(self, record: dict[str, Any], note: str = "") -> None:
        """An epoch was recorded.   note: what the method says of it, mostly nothing."""

    def end(self) -> None:
        """The run stopped, however it did."""
