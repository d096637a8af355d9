"""MNIST's IDX files, BSDS500's backgrounds, and the two together."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stablenet.data.image_list import ImageList
from stablenet.data.sources import read_source
from stablenet.data.sources.digits import read_backgrounds, read_idx
from stablenet.errors import UserError


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()


def write_mnist(folder: Path, packed: bool = True) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for stem, size in (("train", 30), ("t10k", 20)):
        made[stem] = rng.integers(0, 256, (size, 28, 28)).astype(np.uint8)
        files = {"images-idx3": made[stem], "labels-idx1": (np.arange(size) % 10).astype(np.uint8)}
        for name, values in files.items():
            data = idx(values)
            path = folder / f"{stem}-{name}-ubyte"
            path.with_suffix(".gz" if packed else "").write_bytes(gzip.compress(data) if packed else data)
    return made


def write_backgrounds(folder: Path, number: int = 200) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(number):
        Image.new("RGB", (30 + k % 3, 29), (k, 255 - k, 7)).save(folder / f"{1000 + k}.png")


@pytest.mark.parametrize(("place", "packed"), [("", True), ("mnist", True), ("MNIST/raw", False)])
def test_mnist_rows_and_digits_agree(place: str, packed: bool, tmp_path: Path) -> None:
    made = write_mnist(tmp_path / place, packed)
    table = read_source("mnist", tmp_path)
    assert list(table.rows["id"][[0, 29, 30]]) == ["train/00000", "train/00029", "test/00000"]
    assert list(table.rows["label"][[0, 29, 30, 49]]) == [0, 9, 0, 9]
    assert list(table.rows["subset"].unique()) == ["train", "test"]
    np.testing.assert_array_equal(table.read_digits(), np.concatenate([made["train"], made["t10k"]]))
    assert not table.read_backgrounds()[0].any(), "plain MNIST stands on black"


def test_idx_files_that_are_broken(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    whole = idx(np.zeros((3, 2), np.uint8))
    for data, message in (
        (whole[:-1], r"truncated: it has 5 values, but its header says \(3, 2\)"),
        (whole + b"\0", "truncated: it has 7 values"),
        (whole[:6], "truncated"),
        (b"\x00\x00\x0d\x01" + whole[4:], "not an IDX file of unsigned bytes: its first bytes are 00 00 0d 01"),
        (b"", "not an IDX file"),
    ):
        path.write_bytes(gzip.compress(data))
        with pytest.raises(UserError, match=message):
            read_idx(path)
    path.write_bytes(gzip.compress(whole)[:-9])
    with pytest.raises(UserError, match="cannot be unpacked"):
        read_idx(path)
    path.write_bytes(b"no gzip")
    with pytest.raises(UserError, match="cannot be unpacked"):
        read_idx(path)


def test_images_and_labels_must_belong_together(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(19, np.uint8))))
    with pytest.raises(UserError, match=r"has the shape \(20, 28, 28\), but its labels need \(19, 28, 28\)"):
        read_source("mnist", tmp_path).read_digits()


def test_missing_mnist_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train-labels-idx1-ubyte.gz was not found .* `stablenet data download mnist`"):
        read_source("mnist", tmp_path)


@pytest.mark.parametrize("place", ["bsds500-train", "BSR/BSDS500/data/images/train"])
def test_backgrounds_are_domains(place: str, tmp_path: Path, zip_folder: Callable[..., Path]) -> None:
    root = tmp_path / "x"
    write_backgrounds(root / place)
    write_backgrounds(root / "PACS/sketch/dog", 3)  # numbered images elsewhere are no backgrounds
    if place.endswith("images/train"):
        write_backgrounds((root / place).parent / "val", 5)
    table = read_source("bsds500", root)
    assert table.domains == tuple(str(1000 + k) for k in range(200))
    assert list(table.rows["domain"]) == list(range(200))
    packed = read_source("bsds500", zip_folder(root))
    assert list(packed.rows["id"]) == list(table.rows["id"])


def test_damaged_backgrounds_are_all_named(tmp_path: Path) -> None:
    write_backgrounds(tmp_path / "bsds500")
    files = sorted((tmp_path / "bsds500").iterdir())
    files[3].write_bytes(files[3].read_bytes()[:50])
    files[8].write_bytes(b"no image")
    table = read_source("bsds500", tmp_path)
    assert isinstance(table, ImageList)
    with pytest.raises(UserError, match=rf"2 backgrounds .* {files[3].name} \(.*, {files[8].name} \(not an image"):
        read_backgrounds(table)


def test_wrong_number_of_backgrounds(tmp_path: Path) -> None:
    write_backgrounds(tmp_path / "bsds500", 199)
    with pytest.raises(UserError, match="contains 199 training images of BSDS500, expected the published 200"):
        read_source("bsds500", tmp_path)


def test_mnist_m_joins_both(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    write_backgrounds(tmp_path / "bsds500")
    table = read_source("mnist-m", tmp_path)
    assert len(table.domains) == 200
    assert len(table.rows) == len(table.read_digits()) == 50
    backgrounds = table.read_backgrounds()
    assert [image.shape for image in backgrounds[:3]] == [(29, 30, 3), (29, 31, 3), (29, 32, 3)]
    assert all((image == (k, 255 - k, 7)).all() for k, image in enumerate(backgrounds))


def test_full_mnist_m(data_folder: Path) -> None:
    table = read_source("mnist-m", data_folder)
    assert table.rows["subset"].value_counts().to_dict() == {"train": 60_000, "test": 10_000}
    assert np.bincount(table.rows["label"][:60_000]).tolist() == [
        *(5923, 6742, 5958, 6131, 5842),
        *(5421, 5918, 6265, 5851, 5949),
    ]
    assert table.read_digits().shape == (70_000, 28, 28)
    assert {image.shape for image in table.read_backgrounds()} == {(321, 481, 3), (481, 321, 3)}
