"""MNIST in its four original IDX files; BSDS500's training images, one domain each; and MNIST-M, composed of both."""

from __future__ import annotations

import gzip
import struct
import zlib
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stablenet.data.decode import decode
from stablenet.data.image_list import ComposedList, ImageList, make_image_table
from stablenet.data.sources.folder import IMAGE_SUFFIXES, find_tree
from stablenet.data.sources.source import Download, Source
from stablenet.errors import UserError
from stablenet.files import read_bytes

COUNT = 200
_LAYOUTS = (
    "BSDS500/data/images/train/<image>, as the authors' archive has it",
    "a folder of the 200 images whose name begins with bsds500",
    "a zip archive of either",
)


def read_bsds500(root: Path) -> ImageList:
    """200 images, one class, 200 domains named by the image's number."""
    tree = find_tree(root, "bsds500", _holds_images, _LAYOUTS[0])
    train = [file for file in tree.images if "/" not in file or file.startswith("train/")]
    if len(train) != COUNT:
        raise UserError(f"{tree.root} contains {len(train)} training images of BSDS500, expected the published {COUNT}")
    names = sorted(PurePosixPath(file).stem for file in train)
    records: list[dict[str, object]] = [
        {
            "id": PurePosixPath(file).stem,
            "path": tree.prefix + file,
            "label": 0,
            "domain": names.index(PurePosixPath(file).stem),
        }
        for file in train
    ]
    return make_image_table("bsds500", tree.root, ("background",), names, records)


def read_backgrounds(table: ImageList) -> list[NDArray[np.uint8]]:
    """All images as (H, W, 3) uint8, in the order of the domains; one error lists all damaged ones."""
    backgrounds, bad = [], []
    for path in table.rows.sort_values("domain")["path"]:
        try:
            backgrounds.append(decode(table.open_bytes(path)))
        except Exception as error:  # decoders may raise anything on broken data
            bad.append(f"{path} ({error})")
    if bad:
        raise UserError(f"{len(bad)} backgrounds in {table.root} cannot be decoded: {', '.join(bad)}; replace them")
    return backgrounds


def _holds_images(folder: str, names: set[str]) -> bool:
    """The authors' folder images/ contains train, val and test; a plain folder contains the images."""
    plain = folder.startswith("bsds") and any(name.endswith(IMAGE_SUFFIXES) for name in names)
    return plain or (folder == "images" and "train" in names)


BSDS500 = Source(
    name="bsds500",
    title="BSDS500: 200 natural images, the backgrounds of MNIST-M",
    origin="Arbelaez et al., Contour Detection and Hierarchical Image Segmentation, TPAMI 2011",
    licence="not stated by its authors; for non-commercial research and education",
    layouts=_LAYOUTS,
    read=read_bsds500,
    counts={"train": COUNT},
    downloads=(Download(url="https://github.com/BIDS/BSDS500/archive/refs/heads/master.zip", file="bsds500.zip"),),
    by_hand="download BSDS500 from the Berkeley Computer Vision group or its GitHub mirror BIDS/BSDS500",
)


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


def read_mnist(root: Path) -> ComposedList:
    """Plain MNIST: one black background, over which |background − digit| is the digit itself."""
    return ComposedList(
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
            raise UserError(f"{path} has the shape {images[-1].shape}, but its labels need ({len(labels)}, 28, 28)")
    return np.concatenate(images)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes: two zero bytes, type 8, number of axes, their lengths, the values."""
    try:
        data = gzip.decompress(read_bytes(path)) if path.suffix == ".gz" else read_bytes(path)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be unpacked ({error}): download it again") from error
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise UserError(f"{path} is not an IDX file of unsigned bytes: its first bytes are {data[:4].hex(' ')}")
    axes = data[3]
    shape = struct.unpack_from(f">{axes}I", data, 4) if len(data) >= 4 + 4 * axes else (0,)
    values = np.frombuffer(data, np.uint8, offset=min(4 + 4 * axes, len(data)))
    if values.size != np.prod(shape, dtype=np.int64) or values.size == 0:
        raise UserError(f"{path} is truncated: it has {values.size} values, but its header says {shape}")
    return values.reshape(shape)


def _find_file(root: Path, stem: str) -> Path:
    places = (root, root / "mnist", root / "MNIST", root / "raw", root / "MNIST" / "raw")
    for place in places:
        for path in (place / f"{stem}.gz", place / stem):
            if path.is_file():
                return path
    raise UserError(
        f"{stem}.gz was not found in {root} or its folder mnist: download it with `stablenet data download mnist`"
    )


MNIST = Source(
    name="mnist",
    title="MNIST: 60,000 + 10,000 handwritten digits",
    origin="LeCun, Cortes and Burges, http://yann.lecun.com/exdb/mnist",
    licence="CC BY-SA 3.0",
    layouts=("train-|t10k-images-idx3-ubyte[.gz] and -labels-idx1-ubyte[.gz], also below mnist/ or MNIST/raw/",),
    read=read_mnist,
    counts={"train": 60_000, "test": 10_000},
    downloads=tuple(Download(url=_MIRROR + file, file=f"mnist/{file}", md5=md5) for file, md5 in _MD5.items()),
    by_hand="download the four IDX files and put them into the folder mnist",
)


def read_mnist_m(root: Path) -> ComposedList:
    """MNIST-M from a root with both MNIST and BSDS500; one domain per background image."""
    images = read_bsds500(root)
    return ComposedList(
        name="mnist-m",
        classes=CLASSES,
        domains=images.domains,
        rows=read_digit_rows(root),
        read_digits=partial(read_digits, root),
        read_backgrounds=partial(read_backgrounds, images),
    )


MNIST_M = Source(
    name="mnist-m",
    title="MNIST-M: digits over natural images in 200 domains, generated on the fly",
    origin="Ganin and Lempitsky, Unsupervised Domain Adaptation by Backpropagation, ICML 2015",
    licence="those of MNIST and BSDS500",
    layouts=("one folder with MNIST and BSDS500, each in one of its layouts",),
    read=read_mnist_m,
    counts={"train": 60_000, "test": 10_000},
    downloads=MNIST.downloads + BSDS500.downloads,
    by_hand="download MNIST and BSDS500 into one folder",
)
