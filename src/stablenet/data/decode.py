"""From a file in a folder or archive to pixels. Worker processes import this: nothing heavy belongs here."""

from __future__ import annotations

import os
import zipfile
from functools import lru_cache
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from stablenet.errors import UserError


def read_bytes(root: Path, path: str) -> bytes:
    """The file at `path` in a folder or zip archive. Safe in threads and in forked or spawned processes."""
    try:
        if root.is_dir():
            return (root / path).read_bytes()
        return _open_archive(root, os.getpid()).read(path)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"cannot read {path} in {root}: {error}") from error


@lru_cache(maxsize=8)
def _open_archive(root: Path, process: int) -> zipfile.ZipFile:
    """One open archive per process: a forked child must not share its parent's file offset."""
    return zipfile.ZipFile(root)


def decode(data: bytes, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """Encoded image to (H, W, 3) uint8 in RGB, resized to `size` = (H, W) as a whole if it has another.

    Resizing is bilinear with antialiasing and does not keep the proportions, as is usual in this field:
    nothing at the border is lost.
    """
    with _open_image(data) as opened:
        transparent = opened.mode == "P" and "transparency" in opened.info
        image = opened.convert("RGBA").convert("RGB") if transparent else opened.convert("RGB")
    if size is not None and image.size != (size[1], size[0]):
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(image)


def read_size(data: bytes) -> tuple[int, int]:
    """Height and width from the header alone."""
    with _open_image(data) as image:
        return image.height, image.width


def _open_image(data: bytes) -> Image.Image:
    """Pillow's own message names the buffer's address in memory, which helps nobody and differs every time."""
    try:
        return Image.open(BytesIO(data))
    except UnidentifiedImageError as error:
        raise UnidentifiedImageError("no image, or of an unknown format" if data else "the file is empty") from error
