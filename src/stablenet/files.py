"""Atomic writes of files and folders, appended JSON lines, locks between processes, and hashes."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from stablenet.errors import UserError, explain_os_error, shorten_path
from stablenet.values import is_text, show

PARTIAL = ".partial-"  # in the names of folders that are being built
_GLANCE = 0.1  # seconds to retry a lock: `is_locked` takes it for a moment, which must not look like a holder
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@contextmanager
def name_full_disk(path: Path) -> Iterator[None]:
    """Turn the error of a full or read-only disk, or of a file that may not grow, into a UserError."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL_DISK:
            raise explain_os_error(error, path) from error
        raise


@contextmanager
def name_refusals(path: Path) -> Iterator[None]:
    """Turn whatever the system refuses while `path` is read or written into a UserError."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOENT and not path.parent.is_dir():
            raise UserError(f"the folder {shorten_path(path.parent)} does not exist: create it first") from error
        raise explain_os_error(error, path) from error


def write_whole(path: Path, write: Callable[[Path], object], sync: bool = True) -> None:
    """Write a file atomically: `write` fills a temporary file, which then replaces `path`.

    sync: flush the file to disk; otherwise a power failure (not a killed process) may lose it.
    """
    if path.is_dir():
        raise explain_os_error(IsADirectoryError(errno.EISDIR, ""), path)
    if path.exists() and not path.is_file():  # a device or a pipe is never replaced by a file
        with name_refusals(path), _find_reader(path):
            write(path)
        return
    # The same temporary name for all writers: leftovers of killed processes are overwritten and do not accumulate.
    partial = path.with_name(f".{path.name}.partial")
    try:
        with name_refusals(path):
            write(partial)
            if sync:
                _sync(partial)
            partial.replace(path)
    finally:
        with suppress(OSError):  # such as a name too long, whose error is already on its way
            partial.unlink()


@contextmanager
def _find_reader(path: Path) -> Iterator[None]:
    """Raise for a pipe that nobody reads, which would be waited for without end; a reader is kept meanwhile."""
    if not path.is_fifo():
        yield
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    try:
        yield
    finally:
        os.close(descriptor)


def write_bytes(path: Path, data: bytes, sync: bool = True) -> None:
    write_whole(path, lambda partial: partial.write_bytes(data), sync)


def write_text(path: Path, text: str, sync: bool = True) -> None:
    """Write text as UTF-8, with unchanged line ends on every system."""
    write_bytes(path, encode_text(text, path), sync)


def encode_text(text: str, path: Path) -> bytes:
    """UTF-8 for a file at `path`; names of files that are no text cannot be written."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        odd = show(text[max(0, error.start - 20) : error.start + 20])
        raise UserError(
            f"{shorten_path(path)} cannot hold {odd}, which is not valid UTF-8: rename that file or folder"
        ) from error


def write_json(path: Path, values: Any, sync: bool = True) -> None:
    write_text(path, json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n", sync)


def check_names(names: Iterable[object]) -> None:
    """Refuse names of files that are not text: no table and no page can hold them."""
    for name in names:
        if not is_text(str(name)):
            raise UserError(f"the file name {shorten_path(name)} is not valid UTF-8: rename the file")


def resolve(path: Path) -> Path:
    """The whole path, without links. `Path.resolve` itself raises where links go in a circle."""
    return Path(os.path.realpath(path))


def check_file(path: Path) -> None:
    """Raise unless the path is a file that exists: no folder, no device."""
    with name_refusals(path):
        mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise explain_os_error(IsADirectoryError(errno.EISDIR, ""), path)
    if not stat.S_ISREG(mode):
        raise UserError(f"{shorten_path(path)} is a device or a pipe: give a file")


def refuse_folder(error: OSError) -> NoReturn:
    """For `os.walk`, which otherwise passes over folders that it cannot read."""
    raise explain_os_error(error)


def read_bytes(path: Path) -> bytes:
    """The whole of a file that is not changed meanwhile."""
    check_file(path)
    with name_refusals(path):
        before = path.stat()
        data = path.read_bytes()
        after = path.stat()
    if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size) or len(data) != after.st_size:
        raise UserError(f"{shorten_path(path)} was changed while it was read: try again when nobody writes it")
    return data


def read_text(path: Path) -> str:
    data = read_bytes(path)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{shorten_path(path)} is not text in UTF-8 (byte {error.start}): save it as UTF-8, or give another file"
        ) from error


def read_json(path: Path) -> Any:
    text = read_text(path)
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: it is not JSON") from error


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged: it holds no table")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class Lines:
    """A file of JSON lines to append to. length: bytes of the existing file to keep; None keeps all."""

    def __init__(self, path: Path, length: int | None = None) -> None:
        self._path = path
        with name_refusals(path):
            self._file = path.open("ab")
        if length is not None:
            if self._file.seek(0, os.SEEK_END) < length:
                self._file.close()
                raise UserError(f"{path} is shorter than recorded in its checkpoint: the run folder was changed")
            self._file.truncate(length)
            self._file.seek(0, os.SEEK_END)

    def append(self, record: dict[str, Any]) -> None:
        line = json.dumps(replace_nan(record), ensure_ascii=False, allow_nan=False) + "\n"
        with name_refusals(self._path):
            self._file.write(encode_text(line, self._path))
            self._file.flush()

    def length(self) -> int:
        """Length of the file in bytes."""
        return self._file.tell()

    def sync(self) -> None:
        """Flush all lines to disk."""
        with name_refusals(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All complete lines; a last line left incomplete by a killed process is skipped."""
    if not path.exists():
        return []
    check_file(path)
    with name_refusals(path):  # not `read_bytes`: a run may append to it meanwhile
        text = path.read_text(encoding="utf-8", errors="replace")
    # Not splitlines, which also splits at other characters that texts may contain.
    *whole, _ = text.split("\n")
    return [_read_line(line, number, path) for number, line in enumerate(whole, start=1)]


def _read_line(line: str, number: int, path: Path) -> dict[str, Any]:
    try:
        record = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: line {number} is not JSON") from error
    if not isinstance(record, dict):
        raise UserError(f"{path} is damaged: line {number} is not a JSON object")
    return record


def replace_nan(value: Any) -> Any:
    """Replace NaN and infinities, which JSON does not have, by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: replace_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nan(item) for item in value]
    return value


@contextmanager
def build_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that is renamed to `path` at the end, or removed on any error.

    Call while holding `lock`: folders left behind by killed processes are removed first.
    """
    for leftover in path.parent.glob(f".{path.name}{PARTIAL}*"):
        shutil.rmtree(leftover)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}{PARTIAL}", dir=path.parent))
    folder.chmod(0o755)  # mkdtemp's folders are private to the user
    try:
        with name_full_disk(path):
            yield folder
            _put_in_place(folder, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _put_in_place(folder: Path, path: Path) -> None:
    for file in (*folder.iterdir(), folder):
        _sync(file)
    aside = folder.with_name(f"{folder.name}-old")  # named like a leftover, in case the process is killed here
    if path.exists():
        path.rename(aside)
    folder.rename(path)
    _sync(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":
        return  # Windows cannot open folders, and keeps renames without this call
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)  # Windows syncs only writable files
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a run folder, or raise if it is taken; released when the process ends, however it ends.

    path: the lock file in that folder.
    """
    with _open_lock(path) as descriptor:
        if not _try_lock(descriptor, path):
            raise UserError(f"another process is training in {path.parent}: wait for it to finish, or stop it first")
        yield


@contextmanager
def lock(path: Path, wait: bool = True) -> Iterator[bool]:
    """Let one process at a time build `path`; others wait here, or get False. Creates the parent folder of `path`."""
    from filelock import lock_descriptor

    file = lock_file(path)
    with _open_lock(file) as descriptor:
        if wait:
            with _name_missing_locks(file):
                lock_descriptor(descriptor)
        yield wait or _try_lock(descriptor, file)


def lock_file(path: Path) -> Path:
    """The file that is locked while `path` is built."""
    return path.with_name(f".{path.name}.lock")


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock now. True if that cannot be determined: then the recorded state counts.

    It cannot be determined for a read-only file on a network file system.
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
    """Remove a lock file. Windows does not remove one that is held: it then stays, and the next run reuses it."""
    try:
        path.unlink(missing_ok=True)
    except PermissionError:
        if os.name != "nt":
            raise


@contextmanager
def _open_lock(path: Path) -> Iterator[int]:
    """Open a lock file and yield its descriptor; closing it releases the lock."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(f"cannot write to {path.parent} ({error.strerror}): choose another folder") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_to_look(path: Path) -> int:
    """Open a lock file for writing if allowed: network file systems lock no other files."""
    try:
        return os.open(path, os.O_RDWR)
    except FileNotFoundError:
        raise
    except OSError:  # another user's file, or a read-only file system
        return os.open(path, os.O_RDONLY)


def _try_lock(descriptor: int, path: Path) -> bool:
    """Try to take the lock, which is then held until the descriptor is closed; return whether it was taken."""
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
            f"{path} cannot be locked ({error.strerror}): choose a folder on a file system that supports locks"
        ) from error


def hash_file(path: Path, algorithm: str = "sha256") -> str:
    """Hash of a file, in hexadecimal digits."""
    check_file(path)
    with name_refusals(path), path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
