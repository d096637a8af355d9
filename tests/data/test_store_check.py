"""What is found in a whole store, in a damaged one, and in one whose source went on."""

import pytest
from PIL import Image

from stablenet.data.prepare import prepare
from stablenet.data.sources import read_source
from stablenet.data.store import PIXELS, PixelStore, check_store


@pytest.fixture
def tree(write_files):
    root = write_files([f"{d}/{c}/{k}.png" for d in ("n", "s") for c in ("cat", "dog") for k in range(3)])
    (root / "s/dog/2.png").write_bytes(b"no image")
    return root


@pytest.fixture
def store(tree, tmp_path):
    return prepare(read_source("folder", tree), tmp_path / "store", skip_bad=True).store


def test_a_whole_store_holds(store, tree):
    assert [finding.name for finding in check_store(store)] == ["every image matches its checksum"]
    findings = check_store(store, read_source("folder", tree))
    assert all(finding.holds for finding in findings)
    assert [finding.detail for finding in findings] == ["11 images of 4 × 4", "12 images, 1 of them left out"]


def test_damage_and_a_changed_source_are_found_at_once(store, tree):
    data = bytearray((store.path / PIXELS).read_bytes())
    data[4 * 48] ^= 1
    (store.path / PIXELS).write_bytes(data)
    Image.new("RGB", (4, 4)).save(tree / "n/cat/0.png")
    damaged, changed = check_store(PixelStore.open(store.path), read_source("folder", tree))
    assert not damaged.holds
    assert "1 images do not match their checksums: n/dog/1.png" in damaged.detail
    assert not changed.holds
    assert "1 changed (for example n/cat/0.png)" in changed.detail
