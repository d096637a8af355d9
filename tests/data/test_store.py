"""Opening a store: only a whole one opens, and damage is named."""

import numpy as np
import pytest
import torch
from PIL import Image

from stablenet.data.image_list import make_image_list
from stablenet.data.prepare import prepare
from stablenet.data.store import PixelStore
from stablenet.errors import UserError


@pytest.fixture
def store(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    rng = np.random.default_rng(0)
    for k in range(6):
        Image.fromarray(rng.integers(0, 256, (4, 5, 3), np.uint8)).save(source / f"{k}.png")
    records = [{"id": f"{k}.png", "path": f"{k}.png", "label": 0, "domain": 0} for k in range(6)]
    table = make_image_list("six", source, ("a",), ("b",), records)
    return prepare(table, tmp_path / "store").store


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("pixels.bin", lambda data: data[:-1], "359 bytes, expected 360"),
        ("images.parquet", lambda data: data[:-1] + b"?", "checksum of images.parquet"),
        ("store.json", lambda data: data[: len(data) // 2], "is not JSON"),
        ("store.json", lambda data: data.replace(b'"format": 1', b'"format": 9'), "format 9"),
        ("store.json", lambda data: data.replace(b'"count"', b'"cuont"'), "count, cuont"),
        ("store.json", lambda data: data.replace(b'"a"', b""), "names 0 for the labels of its images"),
        ("store.json", lambda data: data.replace(b'"b"', b""), "names 0 for the domains of its images"),
        ("store.json", lambda data: data.replace(b'"left_out": [', b'"left_out": [{"id": "x"}'), "lacks one of class"),
    ],
)
def test_a_store_that_is_not_whole_does_not_open(store, file, change, message):
    path = store.path / file
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=message):
        PixelStore.open(store.path)


@pytest.mark.parametrize("file", ["pixels.bin", "images.parquet"])
def test_a_missing_file_is_named(store, file):
    (store.path / file).unlink()
    with pytest.raises(UserError, match=f"{file} cannot be read"):
        PixelStore.open(store.path)


def test_a_flipped_bit_is_found(store):
    path = store.path / "pixels.bin"
    data = bytearray(path.read_bytes())
    data[3 * 60 + 7] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"1 images do not match their checksums: 3\.png"):
        PixelStore.open(store.path).verify()


@pytest.mark.parametrize("rows", [[6], [-1], [0, 99]])
def test_rows_out_of_range_are_refused(store, rows):
    with pytest.raises(IndexError, match=r"rows must be in 0\.\.5"):
        store.read(torch.tensor(rows))


def test_reading_fills_what_is_given(store):
    place = torch.empty(2, 4, 5, 3, dtype=torch.uint8)
    assert store.read(torch.tensor([5, 1]), out=place) is place
    assert torch.equal(place, store.pixels[[5, 1]])


def test_writing_to_the_tensor_never_reaches_the_file(store):
    before = store.pixels.clone()
    store.pixels.zero_()
    assert (PixelStore.open(store.path).pixels == before).all()
