"""Handwritten digits, blended over backgrounds: MNIST-M, and the bundled data, which need no download.

MNIST-M is composed of MNIST in its four original IDX files and of BSDS500's training images, one domain each.

The bundled digits are scikit-learn's copy of the UCI optical digits (1,797 images of 8 × 8 pixels, CC BY 4.0), enlarged
to the 28 pixels of MNIST and blended as in MNIST-M over procedural textures. Texture k is a pure function of k: a
pattern (cycling through six kinds), its scale and direction, and a palette. Consecutive textures differ in kind and are
far apart in hue.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

from stablenet.data.decode import decode
from stablenet.data.image_list import ComposedList, ImageList, make_image_list
from stablenet.data.sources.folder import IMAGE_SUFFIXES, find_tree
from stablenet.data.sources.source import Download, Source
from stablenet.errors import UserError
from stablenet.files import read_bytes
from stablenet.registry import old_function

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
    return make_image_list("bsds500", tree.root, ("background",), names, records)


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


NUM_TEXTURES = 200  # as many as MNIST-M has background images
TEXTURE_SIDE = 96  # pixels: room for 69 × 69 different crops of 28
_STREAM = 20210  # makes these draws differ from other uses of the same small seeds
_GOLDEN = 0.6180339887498949  # steps of this size spread any number of hues evenly

Field = NDArray[np.float64]


def draw_texture(number: int, side: int = TEXTURE_SIDE) -> NDArray[np.uint8]:
    """Texture `number` as (side, side, 3) uint8."""
    rng = np.random.default_rng([_STREAM, number])
    field = _KINDS[number % len(_KINDS)](rng, side)
    low, high = field.min(), field.max()
    return _colour((field - low) / (high - low), number, rng)


def draw_textures(count: int = NUM_TEXTURES, side: int = TEXTURE_SIDE) -> list[NDArray[np.uint8]]:
    """The first `count` textures."""
    return [draw_texture(number, side) for number in range(count)]


def texture_names(count: int = NUM_TEXTURES) -> tuple[str, ...]:
    """Names of the first `count` textures, for example "waves-006"."""
    kinds = [kind.__name__.removeprefix("_draw_") for kind in _KINDS]
    return tuple(f"{kinds[number % len(kinds)]}-{number:03d}" for number in range(count))


def _colour(field: Field, number: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Map field (s, s) in 0..1 to three colours around the texture's hue, dark to light or light to dark."""
    hue = number * _GOLDEN % 1.0
    hues = hue + np.array([0.0, rng.uniform(-0.2, 0.2), rng.uniform(-0.45, 0.45)])
    saturations = rng.uniform([0.5, 0.4, 0.25], [1.0, 0.9, 0.8])
    values = rng.uniform([0.05, 0.3, 0.65], [0.3, 0.6, 1.0])
    palette = _rgb(hues, saturations, values)
    if rng.random() < 0.5:
        palette = palette[::-1]
    channels = [np.interp(field, [0.0, 0.5, 1.0], palette[:, channel]) for channel in range(3)]
    return np.round(np.stack(channels, axis=-1) * 255).astype(np.uint8)


def _rgb(hue: Field, saturation: Field, value: Field) -> Field:
    """HSV to RGB.   hue, saturation, value: (k,), hue in turns.   Returns (k, 3) in 0..1."""
    sector = (np.array([5.0, 3.0, 1.0]) + hue[:, None] * 6.0) % 6.0
    drop = np.clip(np.minimum(sector, 4.0 - sector), 0.0, 1.0)
    colours: Field = value[:, None] * (1.0 - saturation[:, None] * drop)
    return colours


def _axes(side: int) -> tuple[Field, Field]:
    """Coordinates (s, s) across and down, in pixels."""
    down, across = np.mgrid[0:side, 0:side].astype(np.float64)
    return across, down


def _along(side: int, angle: float) -> Field:
    """Distance in pixels along a direction."""
    across, down = _axes(side)
    distance: Field = np.cos(angle) * across + np.sin(angle) * down
    return distance


def _draw_waves(rng: np.random.Generator, side: int) -> Field:
    """Three sinusoids of similar directions and wavelengths."""
    angle, length = rng.uniform(0, np.pi), rng.uniform(6, 28)
    field = np.zeros((side, side))
    for _ in range(3):
        direction, wavelength = angle + rng.normal(0, 0.5), length * rng.uniform(0.6, 1.6)
        field += np.sin(2 * np.pi * _along(side, direction) / wavelength + rng.uniform(0, 2 * np.pi))
    return field


def _draw_noise(rng: np.random.Generator, side: int) -> Field:
    """Noise whose power decreases with frequency, stretched in one direction."""
    across, down = np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side))
    angle, stretch = rng.uniform(0, np.pi), rng.uniform(1, 3)
    first = np.cos(angle) * across + np.sin(angle) * down
    second = stretch * (np.cos(angle) * down - np.sin(angle) * across)
    frequency = np.hypot(first, second) + 1 / side
    spectrum = np.fft.fft2(rng.standard_normal((side, side))) * frequency ** -rng.uniform(0.6, 2.2)
    return np.tanh(_standardize(np.fft.ifft2(spectrum).real))


def _draw_cells(rng: np.random.Generator, side: int) -> Field:
    """Cells around random points: each has its own shade, darker towards its border."""
    count = int(rng.integers(12, 120))
    seeds, shades = rng.uniform(0, side, (count, 2)), rng.uniform(0, 1, count)
    across, down = _axes(side)
    squared = (across[..., None] - seeds[:, 0]) ** 2 + (down[..., None] - seeds[:, 1]) ** 2
    nearest = np.partition(squared, 1, axis=-1)[..., :2]
    border = np.sqrt(nearest[..., 1]) - np.sqrt(nearest[..., 0])
    field: Field = shades[squared.argmin(-1)] + rng.uniform(0.3, 1.0) * np.tanh(border / 3)
    return field


def _draw_stripes(rng: np.random.Generator, side: int) -> Field:
    """Sharp stripes of several shades, bent by a slow wave."""
    angle, period = rng.uniform(0, np.pi), rng.uniform(5, 22)
    bend = rng.uniform(0, 4) * np.sin(2 * np.pi * _along(side, angle + np.pi / 2) / rng.uniform(30, 80))
    shades = rng.permutation(np.linspace(0, 1, int(rng.integers(2, 5))))
    band = np.floor((_along(side, angle) + bend) / period * len(shades)).astype(int)
    field: Field = shades[band % len(shades)]
    return field


def _draw_checks(rng: np.random.Generator, side: int) -> Field:
    """A rotated chequerboard of rectangles with slowly varying shade."""
    angle, width, height = rng.uniform(0, np.pi / 2), rng.uniform(4, 18), rng.uniform(4, 18)
    first = np.floor(_along(side, angle) / width)
    second = np.floor(_along(side, angle + np.pi / 2) / height)
    shade = np.sin(2 * np.pi * _along(side, rng.uniform(0, np.pi)) / rng.uniform(40, 120))
    field: Field = (first + second) % 2 + rng.uniform(0, 0.5) * shade
    return field


def _draw_rings(rng: np.random.Generator, side: int) -> Field:
    """Dots or rings on a rotated, skewed lattice."""
    angle, period, skew = rng.uniform(0, np.pi), rng.uniform(8, 30), rng.uniform(0, 0.5)
    first, second = _along(side, angle) / period, _along(side, angle + np.pi / 2) / period
    row = np.floor(second)
    radius = np.hypot((first + skew * row) % 1 - 0.5, second - row - 0.5)
    return np.cos(2 * np.pi * radius * rng.uniform(0.8, 2.5))


def _standardize(field: Field) -> Field:
    centred: Field = (field - field.mean()) / field.std()
    return centred


_KINDS: tuple[Callable[[np.random.Generator, int], Field], ...] = (
    _draw_waves,
    _draw_noise,
    _draw_cells,
    _draw_stripes,
    _draw_checks,
    _draw_rings,
)


NUM_TEST = 500  # the last 500 digits, mostly from other writers than the first 1,297


def read_embedded() -> ComposedList:
    """The embedded source as a list; only scikit-learn's copy of the digits is read from disk."""
    labels = _load_digits()[1]
    first_test = len(labels) - NUM_TEST
    rows = pd.DataFrame(
        {
            "id": [f"digits/{number:04d}" for number in range(len(labels))],
            "label": labels,
            "subset": np.where(np.arange(len(labels)) < first_test, "train", "test"),
        }
    )
    return ComposedList(
        name="embedded",
        classes=tuple(str(digit) for digit in range(10)),
        domains=texture_names(NUM_TEXTURES),
        rows=rows,
        read_digits=read_bundled_digits,
        read_backgrounds=draw_textures,
    )


embedded_table = old_function("embedded_table", read_embedded)


def read_bundled_digits() -> NDArray[np.uint8]:
    """The digits as (1797, 28, 28) uint8, ink 255 on background 0, enlarged with a bicubic filter."""
    small = np.round(_load_digits()[0] * (255 / 16)).astype(np.uint8)
    enlarged = [np.asarray(Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BICUBIC)) for image in small]
    return np.stack(enlarged)


def _load_digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Images (1797, 8, 8) with values 0..16 and labels (1797,)."""
    from sklearn.datasets import load_digits  # takes a second to import

    bunch = load_digits()
    return bunch.images, bunch.target.astype(np.int64)
