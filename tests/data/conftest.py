"""Small generated trees of the published layouts, tables without files, and the full data sets where they are."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from stablenet.data.image_list import ImageList, make_image_list
from stablenet.data.sources import AnyImageList, read_source

PACS_COUNTS = {  # dog, elephant, giraffe, guitar, horse, house, person
    "art_painting": (379, 255, 285, 184, 201, 295, 449),
    "cartoon": (389, 457, 346, 135, 324, 288, 405),
    "photo": (189, 202, 182, 186, 199, 280, 432),
    "sketch": (772, 740, 753, 608, 816, 80, 160),
}
PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
VLCS_COUNTS = {  # bird, car, chair, dog, person: totals as published, of which the paper's 70 % can be drawn
    "caltech": (237, 123, 118, 67, 870),
    "labelme": (80, 1209, 89, 43, 1235),
    "pascal": (330, 699, 428, 420, 1499),
    "sun": (20, 933, 1036, 30, 1263),
}
VLCS_CLASSES = ("bird", "car", "chair", "dog", "person")


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with the full data sets; the test is skipped, and says so, where there is none."""
    folder = os.environ.get("STABLENET_DATA")
    if not folder:
        pytest.skip("STABLENET_DATA is not set: the full data sets are not at hand")
    return Path(folder)


@pytest.fixture(scope="session")
def full_pacs(data_folder: Path) -> AnyImageList:
    return read_source("pacs", data_folder)


@pytest.fixture(scope="session")
def tiny_image() -> bytes:
    buffer = BytesIO()
    Image.new("RGB", (4, 4), (10, 20, 30)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def write_files(tmp_path: Path, tiny_image: bytes) -> Callable[[Iterable[str]], Path]:
    """Write a tiny image at every path below a new folder; returns the folder."""

    def write(paths: Iterable[str]) -> Path:
        root = tmp_path / "source"
        for number, path in enumerate(paths):
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(tiny_image + str(number).encode())  # no two files alike
        return root

    return write


@pytest.fixture
def zip_folder(tmp_path: Path) -> Callable[[Path, str], Path]:
    """Pack a folder's files below a prefix into an archive."""

    def pack(root: Path, prefix: str = "") -> Path:
        archive = tmp_path / "source.zip"
        with zipfile.ZipFile(archive, "w") as opened:
            for file in sorted(root.rglob("*")):
                opened.write(file, prefix + file.relative_to(root).as_posix())
        return archive

    return pack


@pytest.fixture(scope="session")
def make_table() -> Callable[..., ImageList]:
    """A table of given class counts per domain; there are no files behind it."""

    def make(name: str, classes: tuple[str, ...], counts: Mapping[str, tuple[int, ...]]) -> ImageList:
        domains = tuple(counts)
        records = [
            {"id": (path := f"{domain}/{cls}/{k:04d}"), "path": path, "label": label, "domain": d}
            for d, domain in enumerate(domains)
            for label, cls in enumerate(classes)
            for k in range(counts[domain][label])
        ]
        return make_image_list(name, Path("nowhere"), classes, domains, records)

    return make


@pytest.fixture(scope="session")
def pacs(make_table: Callable[..., ImageList]) -> ImageList:
    return make_table("pacs", PACS_CLASSES, PACS_COUNTS)


@pytest.fixture(scope="session")
def vlcs(make_table: Callable[..., ImageList]) -> ImageList:
    return make_table("vlcs", VLCS_CLASSES, VLCS_COUNTS)
