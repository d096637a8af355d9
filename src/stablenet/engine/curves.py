"""Records as TensorBoard curves, where they are asked for."""

from __future__ import annotations

from typing import Any

from stablenet.engine.session import Session
from stablenet.errors import UserError


class Curves:
    """Writes every number of a record under its own name, by step."""

    def __init__(self, session: Session, step: int) -> None:
        self._writer: Any = None
        if session.runtime.tensorboard and session.first:
            self._writer = open_writer(str(session.folder.tensorboard), step)

    def add(self, record: dict[str, Any]) -> None:
        if self._writer is None or record["kind"] not in ("step", "epoch"):
            return
        for name, value in flatten(record):
            self._writer.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def open_writer(folder: str, step: int) -> Any:
    """A TensorBoard writer; what an earlier run wrote beyond `step` is taken back."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError("curves need TensorBoard: install it with `pip install stablenet[tensorboard]`") from error
    return SummaryWriter(folder, purge_step=step)


def flatten(record: dict[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    """(name, number) of everything numeric in a record, but what counts steps."""
    pairs: list[tuple[str, float]] = []
    for name, value in record.items():
        if isinstance(value, dict):
            pairs += flatten(value, f"{prefix}{name}/")
        elif isinstance(value, float | int) and name not in ("step", "epoch", "count"):
            pairs.append((prefix + name, float(value)))
    return pairs
