"""A folder that is either whole or not there: built under another name, seen on disk, then renamed."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stablenet.errors import UserError


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """One process builds at `path` at a time; the others wait here. Makes the folder `path` will lie in."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path.parent / f".{path.name}.lock", "w")  # noqa: SIM115 (closed below, errors told apart)
    except OSError as error:
        raise UserError(f"cannot write to {path.parent} ({error.strerror}): choose another place") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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
        yield folder
        _put_in_place(folder, path)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"the disk is full: {path} was not made; free some space and try again") from error
        raise
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
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
