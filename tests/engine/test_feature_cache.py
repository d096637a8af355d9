"""Kept features: read once for all runs that read the same, checked before use, and no reason for a run to fail."""

import errno
import json
import shutil
import threading

import pytest
import torch

from stablenet.engine import feature_cache
from stablenet.engine.feature_cache import FeatureCache, FeatureKey, FeatureWriter, KeptFeatures, Unusable
from stablenet.engine.monitor import Watcher
from stablenet.files import lock
from stablenet.models import Network
from stablenet.weighting import distributed
from tests.engine.test_processes import await_two, join_two, start_two
from tests.engine.tiny import tiny_run

pytestmark = pytest.mark.usefixtures("one_thread")


class Told(Watcher):
    def __init__(self):
        self.texts, self.shares = [], []

    def tell(self, text):
        self.texts.append(text)

    def read(self, done, total):
        self.shares.append((done, total))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STABLENET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(feature_cache, "WORTH_KEEPING", 0)
    return tmp_path / "cache"


@pytest.fixture
def passes(monkeypatch):
    """How many images went through the network for their features."""
    counted = []
    count_images(monkeypatch, counted)
    return counted


def count_images(patch, counted):
    original = Network.read_taps

    def read_taps(self, names, batches, collect):
        batches = list(batches)
        counted.append(sum(len(images) for _, images in batches))
        original(self, names, batches, collect)

    patch.setattr(Network, "read_taps", read_taps)


def run(folder, *settings, watcher=None):
    made = tiny_run(folder, "stablenet", "train.epochs=1", *settings, watcher=watcher or Told())
    return [(made.path / name).read_bytes() for name in ("records.jsonl", "last.safetensors")]


def entries(cache):
    return sorted(path for path in cache.iterdir() if path.is_dir())


def test_a_second_run_reads_one_batch_and_trains_the_same(cache, tmp_path, passes, monkeypatch):
    first, second = Told(), Told()
    kept = run(tmp_path / "a", watcher=first)
    sizes = list(passes)
    training, validation = entries(cache)
    assert [f"features kept in {path}" in text for path in (training, validation) for text in first.texts].count(
        True
    ) == 2
    assert first.shares[-1][0] == first.shares[-1][1] > 0
    passes.clear()
    assert run(tmp_path / "b", watcher=second) == kept
    assert sorted(passes) == [8, 8]
    assert sum("taken from" in text for text in second.texts) == 2
    monkeypatch.setattr(feature_cache, "WORTH_KEEPING", 1 << 40)
    passes.clear()
    assert run(tmp_path / "c") == kept  # as without a cache
    assert passes == sizes
    assert len(entries(cache)) == 2


def test_other_methods_share_and_other_data_or_networks_do_not(cache, tmp_path, passes):
    run(tmp_path / "a")
    run(tmp_path / "b", "method.parameters.offset=0.3", "train.learning_rate=0.01")
    assert len(entries(cache)) == 2
    for number, setting in enumerate(
        ("seed=1", "data.split_seed=3", "data.mean=[0.1,0.1,0.1]", "method.parameters.taps=['stage1']"), start=2
    ):
        run(tmp_path / f"c{number}", *(["data.split_seed=0"] if setting == "seed=1" else []), setting)
        assert len(entries(cache)) == 2 * number, setting


def test_features_that_changed_or_are_damaged_are_read_again(cache, tmp_path):
    kept = run(tmp_path / "a")
    for number, (spoil, why) in enumerate(((change, "now gives others"), (cut, "damaged"), (age, "another version"))):
        for path in entries(cache):
            spoil(path)
        told = Told()
        assert run(tmp_path / f"b{number}", watcher=told) == kept
        assert sum(why in text and "read again" in text for text in told.texts) == 2
        assert sum(text.startswith("features kept") for text in told.texts) == 2
        assert len(entries(cache)) == 2


def change(path):
    data = bytearray((path / "tap0.f16").read_bytes())
    data[:256] = torch.full((128,), 9.0).half().numpy().tobytes()
    (path / "tap0.f16").write_bytes(data)


def cut(path):
    (path / "labels.i64").write_bytes((path / "labels.i64").read_bytes()[:-8])


def age(path):
    header = json.loads((path / "features.json").read_text())
    (path / "features.json").write_text(json.dumps({**header, "format": 0}))


@pytest.mark.parametrize("where", ["add", "finish"])
def test_a_full_disk_is_told_and_costs_nothing_else(cache, tmp_path, monkeypatch, where):
    kept = run(tmp_path / "a")
    for path in entries(cache):
        (path / "features.json").unlink()

    def fail(self, *arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FeatureWriter, where, fail)
    told = Told()
    assert run(tmp_path / "b", watcher=told) == kept
    assert sum("could not be kept" in text and "the disk is full" in text for text in told.texts) == 2
    assert all(not (path / "features.json").exists() for path in entries(cache))


def test_a_folder_that_cannot_be_made_is_told(tmp_path, monkeypatch, cache):
    kept = run(tmp_path / "a")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STABLENET_CACHE", str(tmp_path / "file"))
    told = Told()
    assert run(tmp_path / "b", watcher=told) == kept
    assert sum("could not be kept" in text for text in told.texts) == 2


def samples(count):
    return [
        (torch.arange(k, k + 1), {"one": torch.full((1, 3), float(k))}, torch.tensor([k % 2])) for k in range(count)
    ]


def read_through(key, tell, collect, count=5):
    def read_all(collect):
        for entry in samples(count):
            collect(*entry)

    FeatureCache(key, tell).read(read_all, lambda: samples(1)[0], collect)


def test_a_pass_that_fails_leaves_nothing_and_its_error_is_raised(cache):
    key, seen = FeatureKey("some", {"a": 1}), []

    def collect(index, features, labels):
        seen.append(int(index))
        if len(seen) == 3:
            raise OSError(errno.EIO, "the data cannot be read")

    with pytest.raises(OSError, match="the data cannot be read"):
        read_through(key, print, collect)
    assert entries(cache) == []
    (cache / f".{key.path.name}.partial-killed").mkdir()  # as a killed process leaves it
    seen.clear()
    read_through(key, print, lambda index, features, labels: seen.append(int(index)))
    assert seen == [0, 1, 2, 3, 4]
    assert entries(cache) == [key.path]


def test_who_comes_while_another_writes_waits_and_reads_what_was_written(cache):
    key, texts, found = FeatureKey("some", {"a": 1}), [], []
    with lock(key.path):
        waiting = threading.Thread(target=lambda: read_through(key, texts.append, lambda *entry: found.append(entry)))
        waiting.start()
        key.path.mkdir()
        writer = FeatureWriter(key.path)
        for entry in samples(5):
            writer.add(*entry)
        writer.finish(key)
    waiting.join(20)
    assert texts == [f"features of 5 images taken from {key.path}"]
    assert found[0][1]["one"][:, 0].tolist() == [0, 1, 2, 3, 4]
    assert found[0][2].tolist() == [0, 1, 0, 1, 0]


def test_rounding_is_no_change_and_other_rows_are(cache):
    key = FeatureKey("some", {})
    read_through(key, print, lambda *entry: None)
    kept, (index, features, _) = KeptFeatures(key.path), samples(3)[2]
    kept.check(torch.arange(3), {"one": torch.tensor([[0.0], [1], [2.01]]).expand(3, 3)})
    with pytest.raises(Unusable, match="now gives others"):
        kept.check(torch.arange(3), {"one": torch.tensor([[0.0], [1], [2.2]]).expand(3, 3)})
    with pytest.raises(Unusable, match="now gives others"):
        kept.check(index, features)  # the third row as the first


def test_half_precision_is_what_a_whole_set_holds(cache):
    key, values = FeatureKey("some", {}), torch.randn(300, 3) * 100
    key.path.mkdir(parents=True)
    writer = FeatureWriter(key.path)
    writer.add(torch.arange(300), {"one": values}, torch.arange(300))
    writer.finish(key)
    _, features, _ = next(KeptFeatures(key.path).read(1))
    assert torch.equal(features["one"].to(torch.float16), values.to(torch.float16))


def test_a_lock_is_given_back_where_another_process_has_none(cache, monkeypatch):
    key, answers, free = FeatureKey("some", {}), iter([0, 1, 0]), []

    def look(seconds):
        with lock(key.path, wait=False) as taken:
            free.append(taken)

    monkeypatch.setattr(distributed, "smallest", lambda value, device: next(answers))
    monkeypatch.setattr(feature_cache.time, "sleep", look)
    read_through(key, print, lambda *entry: None)
    assert free == [True]
    assert entries(cache) == [key.path]


def read_in_two(rank, port, folder, names):
    """Runs one after the other in this process, one of two: what went through its network, and what it was told."""
    join_two(rank, port)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STABLENET_CACHE", str(folder / "cache"))
        patch.setattr(feature_cache, "WORTH_KEEPING", 0)
        patch.setattr(feature_cache, "ROWS_AT_ONCE", 24)  # of 24 and 25 training images: one block, and two
        counted = []
        count_images(patch, counted)
        for name in names:
            told = Told()
            run(folder / name, "train.epochs=1", "data.parameters.train_size=61", watcher=told)
            (folder / f"{name}-{rank}.json").write_text(json.dumps({"passes": counted, "texts": told.texts}))
            counted.clear()


def test_each_of_two_processes_keeps_its_share(tmp_path):
    assert await_two(start_two(read_in_two, tmp_path, ("first", "again"))) == [0, 0]
    kept = entries(tmp_path / "cache")
    assert len(kept) == 4  # training and validation samples, of two processes
    counts = sorted(json.loads((path / "features.json").read_text())["count"] for path in kept)
    assert counts == [6, 6, 24, 25]
    read = sorted(
        torch.frombuffer(bytearray((path / "index.i64").read_bytes()), dtype=torch.int64).tolist() for path in kept
    )
    assert read == [list(range(6)), list(range(24)), list(range(6, 12)), list(range(24, 49))]
    shutil.rmtree(kept[0])  # of one process: then all read again
    assert await_two(start_two(read_in_two, tmp_path, ("spoilt",))) == [0, 0]
    results = [(tmp_path / name / "records.jsonl").read_bytes() for name in ("first", "again", "spoilt")]
    assert results[0] == results[1] == results[2]
    passes = {
        name: [json.loads((tmp_path / f"{name}-{rank}.json").read_text())["passes"] for rank in (0, 1)]
        for name in ("first", "again", "spoilt")
    }
    for rank in (0, 1):
        whole, few, some = (sum(passes[name][rank]) for name in ("first", "again", "spoilt"))
        assert few < some < whole + few
    assert entries(tmp_path / "cache") == kept
