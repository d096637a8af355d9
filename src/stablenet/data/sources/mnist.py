"""MNIST as its four original IDX files, compressed or not."""

from __future__ import annotations

import gzip
import struct
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stablenet.data.sources.base import Download, Source
from stablenet.data.table import ComposedTable
from stablenet.errors import UserError

SIDE = 28
CLASSES = tuple(str(digit) for digit in range(10))
_FILES = {"train": "train", "test": "t10k"}
_IMAGES, _LABELS = "-images-idx3-ubyte", "-labels-idx1-ubyte"
_MD5 = {  # as stated by torchvision for the mirror below
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
_MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"


def read(root: Path) -> ComposedTable:
    """Plain MNIST: one black background, over which |background − digit| is the digit itself."""
    return ComposedTable(
        name="mnist",
        classes=CLASSES,
        domains=("black",),
        rows=read_digit_rows(root),
        read_digits=partial(read_digits, root),
        read_backgrounds=lambda: [np.zeros((SIDE, SIDE, 3), np.uint8)],
    )


def read_digit_rows(root: Path) -> pd.DataFrame:
    """Columns id ("train/00000", …), label, subset ("train" or "test"); only the label files are read."""
    frames = []
    for subset, stem in _FILES.items():
        labels = read_idx(_find_file(root, stem + _LABELS)).astype(np.int64)
        ids = [f"{subset}/{number:05d}" for number in range(len(labels))]
        frames.append(pd.DataFrame({"id": ids, "label": labels, "subset": subset}))
    return pd.concat(frames, ignore_index=True)


def read_digits(root: Path) -> NDArray[np.uint8]:
    """All digits, (n, 28, 28) uint8, training images first, in the order of `read_digit_rows`."""
    images = []
    for stem in _FILES.values():
        path = _find_file(root, stem + _IMAGES)
        images.append(read_idx(path))
        labels = read_idx(_find_file(root, stem + _LABELS))
        if images[-1].shape != (len(labels), SIDE, SIDE):
            raise UserError(f"{path} holds {images[-1].shape} values where its labels need ({len(labels)}, 28, 28)")
    return np.concatenate(images)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An IDX file of unsigned bytes: two zero bytes, type 8, number of axes, their lengths, the values."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be unpacked ({error}): get it from its origin again") from error
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise UserError(f"{path} is no IDX file of unsigned bytes: its first bytes are {data[:4].hex(' ')}")
    axes = data[3]
    shape = struct.unpack_from(f">{axes}I", data, 4) if len(data) >= 4 + 4 * axes else (0,)
    values = np.frombuffer(data, np.uint8, offset=min(4 + 4 * axes, len(data)))
    if values.size != np.prod(shape, dtype=np.int64) or values.size == 0:
        raise UserError(f"{path} is truncated: {values.size} values where its header says {shape}")
    return values.reshape(shape)


def _find_file(root: Path, stem: str) -> Path:
    places = (root, root / "mnist", root / "MNIST", root / "raw", root / "MNIST" / "raw")
    for place in places:
        for path in (place / f"{stem}.gz", place / stem):
            if path.is_file():
                return path
    raise UserError(f"{stem}.gz was not found in {root} or its folder mnist: `stablenet data download mnist` gets it")


SOURCE = Source(
    name="mnist",
    title="MNIST: 60,000 + 10,000 handwritten digits",
    origin="LeCun, Cortes and Burges, http://yann.lecun.com/exdb/mnist",
    licence="CC BY-SA 3.0",
    layouts=("train-|t10k-images-idx3-ubyte[.gz] and -labels-idx1-ubyte[.gz], also below mnist/ or MNIST/raw/",),
    read=read,
    counts={"train": 60_000, "test": 10_000},
    downloads=tuple(Download(url=_MIRROR + file, file=f"mnist/{file}", md5=md5) for file, md5 in _MD5.items()),
    by_hand="fetch the four IDX files and put them into the folder mnist",
)
