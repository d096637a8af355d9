"""Files and folders that are whole or not there, lines that are appended, locks between processes, hashes."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stablenet.errors import UserError

_GLANCE = 0.1  # seconds a lock is tried for: `is_locked` takes it for a moment, which must not look like a holder


@contextmanager
def name_full_disk(path: Path) -> Iterator[None]:
    """Turn a full disk into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"the disk is full: {path} could not be written; free some space and try again (a run goes on with "
                "--resume)"
            ) from error
        raise


def write_whole(path: Path, write: Callable[[Path], object], sync: bool = True) -> None:
    """Let `write` fill a file beside the path, then put it in its place in one step: readers see the old or the new.

    sync: wait until the disk has it; without, a power cut (not a killed process) may lose it.
    """
    # One name for all writers: what a killed process left is overwritten, not gathered.
    partial = path.with_name(f".{path.name}.partial")
    try:
        with name_full_disk(path):
            write(partial)
            if sync:
                _sync(partial)
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes, sync: bool = True) -> None:
    write_whole(path, lambda partial: partial.write_bytes(data), sync)


def write_text(path: Path, text: str, sync: bool = True) -> None:
    """UTF-8, lines as they are on every system."""
    write_bytes(path, text.encode(), sync)


def write_json(path: Path, values: Any, sync: bool = True) -> None:
    write_text(path, json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n", sync)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged: it is not JSON") from error


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
def build_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the name `path` at the end, or vanishes if anything goes wrong.

    Call under `lock`: folders a killed process left behind are removed first.
    """
    for leftover in path.parent.glob(f".{path.name}.partial-*"):
        shutil.rmtree(leftover)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.partial-", dir=path.parent))
    folder.chmod(0o755)  # mkdtemp's folders are for one user alone
    try:
        with name_full_disk(path):
            yield folder
            _put_in_place(folder, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _put_in_place(folder: Path, path: Path) -> None:
    for file in (*folder.iterdir(), folder):
        _sync(file)
    aside = folder.with_name(f"{folder.name}-old")  # a leftover by name, should the process be killed here
    if path.exists():
        path.rename(aside)
    folder.rename(path)
    _sync(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _sync(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":
        return  # Windows opens no folders, and needs no such call to keep a rename
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)  # Windows syncs only what may be written
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Train in a run folder alone, refusing to wait; the lock goes with the process, however it ends.

    path: of the lock file, in that folder.
    """
    with _open_lock(path) as descriptor:
        if not _try_lock(descriptor, path):
            raise UserError(f"another process is training in {path.parent}: wait for it, or stop it first")
        yield


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """One process builds at `path` at a time; the others wait here. Makes the folder `path` will lie in."""
    from filelock import lock_descriptor

    file = path.parent / f".{path.name}.lock"
    with _open_lock(file) as descriptor:
        with _name_missing_locks(file):
            lock_descriptor(descriptor)
        yield


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock now. Yes where that cannot be found out: then what is recorded stands.

    It cannot where the file may not be written and lies on a network file system.
    """
    try:
        descriptor = _open_to_look(path)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(descriptor, path)
    except UserError:
        return True
    finally:
        os.close(descriptor)


def remove_lock(path: Path) -> None:
    """Take a lock file away. Windows keeps one that is held: it then stays, and is taken again by the next run."""
    try:
        path.unlink(missing_ok=True)
    except PermissionError:
        if os.name != "nt":
            raise


@contextmanager
def _open_lock(path: Path) -> Iterator[int]:
    """The lock file's descriptor. Closing it lets the lock go."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(f"cannot write to {path.parent} ({error.strerror}): choose another place") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_to_look(path: Path) -> int:
    """For writing where that is allowed: network file systems lock nothing else."""
    try:
        return os.open(path, os.O_RDWR)
    except FileNotFoundError:
        raise
    except OSError:  # another user's file, or a disk that is only read
        return os.open(path, os.O_RDONLY)


def _try_lock(descriptor: int, path: Path) -> bool:
    """Whether the lock could be had; it is held from then on, until the descriptor is closed."""
    from filelock import lock_descriptor

    deadline = time.monotonic() + _GLANCE
    with _name_missing_locks(path):
        while not lock_descriptor(descriptor, blocking=False):
            if time.monotonic() > deadline:
                return False
            time.sleep(_GLANCE / 10)
    return True


@contextmanager
def _name_missing_locks(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} cannot be locked ({error.strerror}): choose a place on a file system that has locks"
        ) from error


def hash_file(path: Path, algorithm: str = "sha256") -> str:
    """A file's hash, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
