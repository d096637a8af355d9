"""Preparing a store: the pixels against Pillow, and every way in which it can go wrong."""

import errno
import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from stablenet.data.image_list import make_image_list
from stablenet.data.prepare import prepare
from stablenet.data.sources import read_source
from stablenet.data.store import PixelStore
from stablenet.errors import UserError


def _noise(seed, size=(12, 10)):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8))


def _write_tree(root, count=20):
    """Images of noise in two domains and two classes; the last is a palette image with transparency."""
    for k in range(count):
        folder = root / ("art", "photo")[k % 2] / ("cat", "dog")[k // 2 % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image = _noise(k)
        if k == count - 1:
            image = image.quantize(8)
            image.info["transparency"] = bytes([0, 128, 255, 255, 255, 255, 255, 255])
        image.save(folder / f"{k:02d}.png")


def _read_table(root):
    def record(path):
        domain, klass, _ = path.split("/")
        label = ["cat", "dog"].index(klass)
        return {"id": path, "path": path, "label": label, "domain": ["art", "photo"].index(domain)}

    if root.is_dir():
        paths = [path.relative_to(root).as_posix() for path in root.rglob("*.png")]
    else:
        with zipfile.ZipFile(root) as archive:
            paths = archive.namelist()
    return make_image_list("tree", root, ("cat", "dog"), ("art", "photo"), [record(p) for p in paths])


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    _write_tree(root)
    return root


@pytest.fixture
def place(tmp_path):
    return tmp_path / "cache" / "store"


def _expected(table, size=None):
    images = []
    for path in table.rows["path"]:
        image = Image.open(BytesIO(table.open_bytes(path))).convert("RGBA").convert("RGB")
        images.append(np.asarray(image.resize(size, Image.Resampling.BILINEAR) if size else image))
    return np.stack(images)


def test_a_store_holds_what_pillow_decodes(tree, place):
    table = _read_table(tree)
    store = prepare(table, place, workers=2).store
    np.testing.assert_array_equal(store.pixels.numpy(), _expected(table))
    assert store.ids == table.rows["id"].tolist()
    assert store.rows["label"].tolist() == table.rows["label"].tolist()
    picked = store.read(torch.tensor([7, 0, 7]))
    np.testing.assert_array_equal(picked.numpy(), _expected(table)[[7, 0, 7]])
    store.verify()


def test_an_archive_gives_the_same_store_as_its_folder(tree, place, tmp_path):
    archive = tmp_path / "tree.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in tree.rglob("*.png"):
            file.write(path, path.relative_to(tree).as_posix())
    from_folder = prepare(_read_table(tree), place).store
    from_archive = prepare(_read_table(archive), place.with_name("zip")).store
    assert torch.equal(from_folder.pixels, from_archive.pixels)
    assert from_folder.rows["content"].equals(from_archive.rows["content"])


def test_images_are_resized_as_a_whole(tree, place):
    table = _read_table(tree)
    store = prepare(table, place, size=8).store
    np.testing.assert_array_equal(store.pixels.numpy(), _expected(table, (8, 8)))


def test_different_sizes_need_a_size(tree, place):
    _noise(99, (5, 6)).save(tree / "art" / "cat" / "odd.png")
    with pytest.raises(UserError, match=r"2 different sizes \(most often 12 × 10, 20 of 21\).*--size"):
        prepare(_read_table(tree), place)
    assert len(prepare(_read_table(tree), place, size=8).store) == 21


def test_an_up_to_date_store_is_kept_and_a_changed_source_noticed(tree, place):
    first = prepare(_read_table(tree), place)
    assert first.made
    assert not prepare(_read_table(tree), place).made
    _noise(50).save(tree / "art" / "cat" / "00.png")
    _noise(51).save(tree / "art" / "cat" / "new.png")
    (tree / "photo" / "dog" / "03.png").unlink()
    changed = _read_table(tree)
    with pytest.raises(UserError, match=r"1 added .*new.png\), 1 removed .*03.png\), 1 changed .*00.png\)"):
        first.store.check_source(changed)
    again = prepare(changed, place)
    assert again.made
    assert "1 changed" in again.replaced
    np.testing.assert_array_equal(again.store.pixels.numpy(), _expected(changed))


def test_a_moved_label_is_a_change(tree, place):
    store = prepare(_read_table(tree), place).store
    table = _read_table(tree)
    table.rows.loc[0, "label"] = 1 - table.rows.loc[0, "label"]
    assert store.compare(table).changed == (table.rows["id"][0],)


def test_another_size_replaces_the_store(tree, place):
    prepare(_read_table(tree), place)
    assert prepare(_read_table(tree), place, size=6).store.pixels.shape == (20, 6, 6, 3)


def _break_three(tree):
    """Truncated, not an image, and empty."""
    broken = [tree / "art" / "cat" / "04.png", tree / "photo" / "cat" / "01.png", tree / "photo" / "dog" / "19.png"]
    broken[0].write_bytes(broken[0].read_bytes()[:200])
    broken[1].write_bytes(b"no image at all")
    broken[2].write_bytes(b"")
    return [path.relative_to(tree).as_posix() for path in broken]


def test_all_bad_images_are_listed_at_once(tree, place):
    broken = _break_three(tree)
    command = r"`stablenet data prepare tree --skip-bad`"
    with pytest.raises(UserError, match=rf"3 of 20 images of tree cannot be decoded.*{command}") as caught:
        prepare(_read_table(tree), place)
    assert all(name in str(caught.value) for name in broken)
    assert list(place.parent.glob("[!.]*")) == []


def test_of_large_sets_files_that_are_no_images_are_named_before_any_is_decoded(tree, place, monkeypatch):
    _break_three(tree)
    monkeypatch.setattr("stablenet.data.prepare.QUICKLY_DECODED", 10)
    monkeypatch.setattr("stablenet.data.prepare._decode_table", lambda *_: pytest.fail("it decodes"))
    with pytest.raises(UserError, match=r"2 of 20 images of tree cannot be decoded.*--skip-bad") as caught:
        prepare(_read_table(tree), place)
    assert "photo/cat/01.png: not an image, or unknown format" in str(caught.value)
    archive = tree.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w") as file:
        for path in tree.rglob("*.png"):
            file.write(path, path.relative_to(tree).as_posix())
    with pytest.raises(UserError, match=r"2 of 20 images") as again:
        prepare(_read_table(archive), place)
    assert str(again.value) == str(caught.value)


def test_skipping_bad_images_records_them_and_closes_the_gaps(tree, place):
    broken = _break_three(tree)
    table = _read_table(tree)
    store = prepare(table, place, skip_bad=True).store
    assert sorted(entry["id"] for entry in store.header.left_out) == sorted(broken)
    good = ~table.rows["id"].isin(broken)
    kept = make_image_list("tree", tree, table.classes, table.domains, table.rows[good].to_dict("records"))
    assert store.ids == kept.rows["id"].tolist()
    np.testing.assert_array_equal(store.pixels.numpy(), _expected(kept))
    store.verify()
    assert not prepare(table, place, skip_bad=True).made
    assert not prepare(table, place, accept_gaps=True).made
    with pytest.raises(UserError, match="3 of 20"):
        prepare(table, place)


def test_accepted_gaps_are_those_of_an_up_to_date_store_alone(tree, place):
    broken = _break_three(tree)
    table = _read_table(tree)
    with pytest.raises(UserError, match="3 of 20"):
        prepare(table, place, accept_gaps=True)
    prepare(table, place, skip_bad=True)
    (tree / broken[0]).write_bytes(b"broken in another way")
    with pytest.raises(UserError, match="3 of 20"):
        prepare(table, place, accept_gaps=True)


def test_nothing_readable_is_an_error_even_when_skipping(tree, place):
    for path in tree.rglob("*.png"):
        path.write_bytes(b"gone")
    with pytest.raises(UserError, match="20 of 20"):
        prepare(_read_table(tree), place, skip_bad=True)


def test_copies_across_domains_are_recorded_and_others_not(tree, place):
    shutil.copy(tree / "art" / "cat" / "00.png", tree / "photo" / "cat" / "copy.png")
    shutil.copy(tree / "art" / "dog" / "02.png", tree / "art" / "dog" / "copy.png")
    store = prepare(_read_table(tree), place).store
    assert store.header.duplicates == [["art/cat/00.png", "photo/cat/copy.png"]]


_KILLED = """
    import os, signal, sys
    sys.path.insert(0, {tests!r})
    from pathlib import Path
    from test_prepare import _read_table, prepare

    def kill_in_the_middle(done, total):
        if done >= 5:
            os.kill(os.getpid(), signal.SIGKILL)

    prepare(_read_table(Path({tree!r})), Path({place!r}), progress=kill_in_the_middle)
"""


def test_a_kill_leaves_no_store_and_the_next_run_cleans_up(tree, place):
    script = _KILLED.format(tests=os.path.dirname(__file__), tree=str(tree), place=str(place))
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert run.returncode == -9
    assert len(list(place.parent.glob(".store.partial-*"))) == 1
    with pytest.raises(UserError, match="no pixel store"):
        PixelStore.open(place)
    prepare(_read_table(tree), place).store.verify()
    assert list(place.parent.glob(".store.partial-*")) == []


def test_a_full_disk_leaves_nothing_and_keeps_the_old_store(tree, place, monkeypatch):
    old = prepare(_read_table(tree), place).store.pixels.clone()
    _noise(50).save(tree / "art" / "cat" / "00.png")
    write = os.write

    def write_until_full(file, data):
        if os.lseek(file, 0, os.SEEK_CUR) >= 5 * 12 * 10 * 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(os, "write", write_until_full)
    with pytest.raises(UserError, match="the disk is full"):
        prepare(_read_table(tree), place)
    assert torch.equal(PixelStore.open(place).pixels, old)
    assert list(place.parent.glob(".store.partial-*")) == []


def test_too_little_space_is_said_before_any_work(tree, place, monkeypatch):
    usage = shutil.disk_usage(tree)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match=r"needs 0.00 GB, but .* has only 0.00 GB free"):
        prepare(_read_table(tree), place)


def test_short_writes_are_continued(tree, place, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:100]))
    np.testing.assert_array_equal(prepare(_read_table(tree), place).store.pixels.numpy(), _expected(_read_table(tree)))


def test_a_store_inside_its_source_or_over_foreign_files_is_refused(tree, tmp_path):
    with pytest.raises(UserError, match="inside its source"):
        prepare(_read_table(tree), tree / "store")
    with pytest.raises(UserError, match="is not a pixel store"):
        prepare(_read_table(tree), tmp_path)
    assert sorted(path.name for path in tree.iterdir()) == ["art", "photo"]


def test_progress_ends_at_the_total(tree, place):
    seen = []
    prepare(_read_table(tree), place, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(16, 20), (20, 20)]


def test_a_place_that_cannot_be_written_is_named(tree, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write to .*file"):
        prepare(_read_table(tree), tmp_path / "file" / "store")


@pytest.mark.skipif("STABLENET_DATA" not in os.environ, reason="needs PACS in the folder STABLENET_DATA")
def test_the_whole_of_pacs_becomes_a_store(place):
    table = read_source("pacs", Path(os.environ["STABLENET_DATA"]))
    store = prepare(table, place, size=32).store
    assert (len(store), store.header.left_out) == (9991, [])
    assert store.rows.groupby("domain").size().tolist() == [2048, 2344, 1670, 3929]
    for k in (0, 5000, 9990):
        with Image.open(BytesIO(table.open_bytes(table.rows["path"][k]))) as image:
            small = image.convert("RGB").resize((32, 32), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(store.pixels[k].numpy(), np.asarray(small))
    store.verify()
