"""Decode images from a folder or archive to pixels, in one process per core.

Threads share Python's lock and gain little. `python -m stablenet.data.decode` is one of the processes; this module and
its imports are kept light (no torch, no pandas), so that it starts in a fraction of a second.

joblib's loky is no alternative: it does not run the user's script again either, and is about as fast, but its processes
were still alive 30 s after this process was killed during decoding, its pool hung after Ctrl-C in a terminal, and the
first answer came 0.2 s later (joblib 1.6 on Linux).
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
import zipfile
import zlib
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from stablenet.data.compose import Placement, paste_cutout
from stablenet.errors import UserError
from stablenet.files import check_file
from stablenet.files import read_bytes as read_file
from stablenet.processes import ChildProcess, Server, name_end

LARGEST_IMAGE = 1 << 28  # bytes of an image file


def read_bytes(root: Path, path: str) -> bytes:
    """Read the file at `path` in a folder or zip archive. Safe in threads and in forked or spawned processes."""
    try:
        if root.is_dir():
            _check_size((root / path).stat().st_size, path)
            return read_file(root / path)
        archive = _open_archive(root, os.getpid())
        _check_size(archive.getinfo(path).file_size, path)
        return archive.read(path)
    except UserError:
        raise
    except (OSError, KeyError, RuntimeError, ValueError, NotImplementedError, zlib.error, zipfile.BadZipFile) as error:
        raise UserError(f"cannot read {path} in {root}: {error}") from error


def _check_size(size: int, path: str) -> None:
    """A member of an archive may unpack to any size."""
    if size > LARGEST_IMAGE:
        raise UserError(f"{path} has {size / 1e9:.1f} GB, more than an image file may have: leave it out")


@lru_cache(maxsize=8)
def _open_archive(root: Path, process: int) -> zipfile.ZipFile:
    """Open an archive once per process: a forked child must not share its parent's file offset."""
    return zipfile.ZipFile(root)


def decode(data: bytes, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """Decode an image to (H, W, 3) uint8 in RGB, resized to `size` = (H, W) if given.

    Resizing is bilinear with antialiasing and does not keep the aspect ratio, as is usual in this field: nothing is
    cropped.
    """
    with _open_image(BytesIO(data), len(data)) as opened:
        return convert_image(opened, size)


def convert_image(opened: Image.Image, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """An opened image as `decode` gives it."""
    transparent = opened.mode == "P" and "transparency" in opened.info
    image = opened.convert("RGBA").convert("RGB") if transparent else opened.convert("RGB")
    if size is not None and image.size != (size[1], size[0]):
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(image)


def decode_cutout(data: bytes) -> NDArray[np.uint8]:
    """Decode a foreground to (h, w, 4) uint8, RGB and alpha, cut to what its alpha leaves visible."""
    with _open_image(BytesIO(data), len(data)) as opened:
        if not opened.has_transparency_data:
            raise ValueError(f"it has no alpha channel (mode {opened.mode}): a foreground needs one")
        image = opened.convert("RGBA")
    visible = image.getbbox(alpha_only=True)
    if visible is None:
        raise ValueError("it is transparent everywhere")
    return np.asarray(image.crop(visible))


def read_size(root: Path, path: str) -> tuple[int, int]:
    """Height and width of the image at `path` in a folder or zip archive, from its header: the rest is not read."""
    with ExitStack() as opened:
        if root.is_dir():
            check_file(root / path)
            size = (root / path).stat().st_size
            file: IO[bytes] = opened.enter_context(open(root / path, "rb"))
        else:
            archive = _open_archive(root, os.getpid())
            size = archive.getinfo(path).file_size
            file = opened.enter_context(archive.open(path))
        image = opened.enter_context(_open_image(file, size))
        return image.height, image.width


def _open_image(file: IO[bytes], size: int) -> Image.Image:
    """Open an image with a useful message on failure: Pillow's contains the buffer's memory address."""
    try:
        return Image.open(file)
    except UnidentifiedImageError as error:
        raise UnidentifiedImageError("not an image, or unknown format" if size else "the file is empty") from error


_WORTH = 2.0  # seconds of work below which starting more processes takes longer than it saves
_GRACE = 1.0  # seconds to wait for the exit status of a process that closed its pipe


@dataclass(frozen=True)
class Task:
    """Decode the images at `paths` in `root` to `shape` = (H, W), into `file` starting at row `first`.

    resize: resize images of another size; otherwise they raise `OtherSize`.
    backgrounds, placements: where the images are cut-outs to be pasted over backgrounds: the folder or archive of
    these, and a placement for each image. `shape` is square then.
    """

    root: Path
    paths: tuple[str, ...]
    shape: tuple[int, int]
    resize: bool
    file: Path
    first: int
    backgrounds: Path | None = None
    placements: tuple[Placement, ...] = ()


@dataclass(frozen=True)
class Decoded:
    """Result for one image: hash of the source bytes and checksum of the pixels, or the reason of a failure."""

    content: str = ""
    crc: int = 0
    reason: str = ""


class OtherSize(Exception):
    """An image differs in size from the others."""


def run_tasks(tasks: list[Task], workers: int) -> Generator[list[Decoded], None, None]:
    """Yield the records of each task, in order. Close the generator to stop early: that ends the workers at once."""
    start = time.perf_counter()
    yield decode_task(tasks[0])
    rest = tasks[1:]
    expected = (time.perf_counter() - start) * len(rest)
    if workers == 1 or expected < _WORTH:
        yield from map(decode_task, rest)
    else:
        yield from _share_tasks(rest, min(workers, len(rest)))


def _share_tasks(tasks: list[Task], workers: int) -> Iterator[list[Decoded]]:
    crew: list[DecodeWorker] = []
    free: SimpleQueue[DecodeWorker] = SimpleQueue()

    def work(task: Task) -> list[Decoded]:
        worker = free.get()
        try:
            return worker.run(task)
        finally:
            free.put(worker)

    pool = ThreadPoolExecutor(workers)  # its threads only wait for the processes
    try:
        for _ in range(workers):
            crew.append(DecodeWorker())
            free.put(crew[-1])
        yield from pool.map(work, tasks)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in crew:
            worker.kill()
        pool.shutdown()  # no thread is waiting for a process any more: the pipes can be closed
        for worker in crew:
            worker.end()


class DecodeWorker:
    """A process that decodes tasks."""

    def __init__(self) -> None:
        self._process = ChildProcess("stablenet.data.decode")

    def run(self, task: Task) -> list[Decoded]:
        self._process.send(write_task(task))
        answer = self._process.receive()
        if answer is None:
            raise UserError(
                f"a decoding process died ({name_end(self._process.end(_GRACE))}); if memory ran out, "
                "use fewer processes with --workers"
            )
        if isinstance(answer, dict):
            raise _read_error(answer)
        return [Decoded(*values) for values in answer]

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        self._process.end()


def write_task(task: Task) -> dict[str, Any]:
    backgrounds = None if task.backgrounds is None else str(task.backgrounds)
    return {**asdict(task), "root": str(task.root), "file": str(task.file), "backgrounds": backgrounds}


def read_task(values: dict[str, Any]) -> Task:
    """Parse a task from its JSON values."""
    height, width = values["shape"]
    paths = {"root": Path(values["root"]), "file": Path(values["file"]), "paths": tuple(values["paths"])}
    backgrounds = values["backgrounds"] and Path(values["backgrounds"])
    placements = tuple(Placement(**each) for each in values["placements"])
    return Task(**{**values, **paths, "shape": (height, width), "backgrounds": backgrounds, "placements": placements})


def _write_error(error: OSError | MemoryError | OtherSize) -> dict[str, Any]:
    if isinstance(error, OSError):
        return {"error": "OSError", "words": [error.errno, error.strerror, error.filename]}
    return {"error": type(error).__name__, "words": [str(error)]}


def _read_error(values: dict[str, Any]) -> Exception:
    """Parse an error from its JSON values; an `OSError` becomes the subclass for its error number."""
    kinds: dict[str, type[Exception]] = {kind.__name__: kind for kind in (OSError, MemoryError, OtherSize)}
    return kinds[values["error"]](*values["words"])


def _answer_task(values: dict[str, Any]) -> list[tuple[str, int, str]] | dict[str, Any]:
    """The records of a task, or its error, as JSON values."""
    try:
        return [(record.content, record.crc, record.reason) for record in decode_task(read_task(values))]
    except (OSError, MemoryError, OtherSize) as error:
        return _write_error(error)


def decode_task(task: Task) -> list[Decoded]:
    """Run a task in this process. An image that cannot be decoded gives a record; a full disk raises."""
    file = os.open(task.file, os.O_WRONLY | getattr(os, "O_BINARY", 0))  # Windows takes files for text otherwise
    try:
        return [_decode_one(task, k, file) for k in range(len(task.paths))]
    finally:
        os.close(file)


def _decode_one(task: Task, number: int, file: int) -> Decoded:
    path = task.paths[number]
    try:
        data = read_bytes(task.root, path)
        if task.backgrounds is None:
            pixels = decode(data, task.shape if task.resize else None)
        else:
            data, pixels = _compose(data, task.backgrounds, task.placements[number], task.shape[0])
    except MemoryError:
        raise
    except Exception as error:  # decoders may raise anything on broken data
        return Decoded(reason=f"{error}" or type(error).__name__)
    if pixels.shape[:2] != task.shape:
        raise OtherSize(path)
    # Plain writes, not a writable memory map: with that, a full disk would kill the process without a message.
    write_at(file, pixels.data.cast("B"), (task.first + number) * pixels.nbytes)
    return Decoded(hashlib.sha256(data).hexdigest(), zlib.crc32(pixels.data))


def _compose(cutout: bytes, backgrounds: Path, placement: Placement, side: int) -> tuple[bytes, NDArray[np.uint8]]:
    """The bytes of both files, and the composed pixels (side, side, 3)."""
    data = read_bytes(backgrounds, placement.background)
    try:
        background = decode(data)
    except Exception as error:  # decoders may raise anything on broken data
        raise ValueError(f"its background {placement.background}: {error}") from error
    return cutout + data, paste_cutout(decode_cutout(cutout), background, placement, side)


def write_at(file: int, data: memoryview, offset: int) -> None:
    """Not `os.pwrite`, which Windows lacks: a task opens the file for itself, so no one else moves its position."""
    os.lseek(file, offset, os.SEEK_SET)
    while data:
        data = data[os.write(file, data) :]


if __name__ == "__main__":
    sys.exit(Server(lambda values, send: _answer_task(values)).run())
