"""Files that are whole or not there, and lines that are appended."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from stablenet.errors import UserError


@contextmanager
def name_full_disk(path: Path) -> Iterator[None]:
    """Turn a full disk into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"the disk is full: {path} could not be written; free some space and go on with --resume"
            ) from error
        raise


def write_whole(path: Path, write: Callable[[Path], None], sync: bool = True) -> None:
    """Let `write` fill a file beside the path, then put it in its place in one step.

    sync: wait until the disk has it; without, a power cut (not a killed process) may lose it.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with name_full_disk(path):
            write(partial)
            if sync:
                with partial.open("rb") as file:
                    os.fsync(file.fileno())
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, values: Any, sync: bool = True) -> None:
    text = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_whole(path, lambda partial: _write_text(partial, text), sync)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged: it is not JSON") from error


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


class Lines:
    """JSON lines, appended to. length: bytes to keep of what is there; None keeps all."""

    def __init__(self, path: Path, length: int | None = None) -> None:
        self._path = path
        self._file = path.open("ab")
        if length is not None:
            if self._file.seek(0, os.SEEK_END) < length:
                self._file.close()
                raise UserError(f"{path} is shorter than its checkpoint says: the run folder was changed")
            self._file.truncate(length)
            self._file.seek(0, os.SEEK_END)

    def append(self, record: dict[str, Any]) -> None:
        line = json.dumps(replace_nan(record), ensure_ascii=False, allow_nan=False) + "\n"
        with name_full_disk(self._path):
            self._file.write(line.encode())
            self._file.flush()

    def length(self) -> int:
        """Of the file, in bytes."""
        return self._file.tell()

    def sync(self) -> None:
        """Bring all lines to the disk."""
        with name_full_disk(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines; a last one that a killed process left half written is passed over."""
    if not path.exists():
        return []
    # Not splitlines: texts may hold characters that it takes for the end of a line.
    *whole, _ = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return [_read_line(line, number, path) for number, line in enumerate(whole, start=1)]


def _read_line(line: str, number: int, path: Path) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise UserError(f"{path} is damaged: line {number} is not JSON") from error
    if not isinstance(record, dict):
        raise UserError(f"{path} is damaged: line {number} is no record")
    return record


def replace_nan(value: Any) -> Any:
    """JSON has no NaN: null says that there is nothing to tell."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: replace_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nan(item) for item in value]
    return value


@contextmanager
def hold_lock(path: Path) -> Iterator[IO[str]]:
    """Only one process at a time; the lock goes with the process, however it ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(f"another process is training in {path.parent}: wait for it, or stop it first") from error
        yield file


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock now."""
    if not path.exists():
        return False
    with path.open("r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
