"""The order of an epoch and its batches: complete, reproducible, divisible, resumable, and blind to other parts."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from stablenet.data.augment import Augment, AugmentSettings, Normalization, Resize
from stablenet.data.image_list import make_image_list
from stablenet.data.loader import (
    BatchSettings,
    Loader,
    MemoryPixels,
    PartSamples,
    check_division,
    count_batches,
    order_epoch,
    read_part,
    render_part,
    slice_batch,
)
from stablenet.data.manifest import Manifest
from stablenet.data.prepare import prepare
from stablenet.data.sources.digits import read_embedded
from stablenet.data.splits import split_images
from stablenet.errors import UserError

DOMAIN = torch.tensor([0] * 50 + [2] * 13 + [5] * 7)


def test_an_epoch_holds_every_sample_once_in_an_order_of_its_own():
    settings = BatchSettings(batch_size=8)
    first, second = (order_epoch(DOMAIN, epoch, settings) for epoch in (0, 1))
    assert sorted(first.position.tolist()) == list(range(70))
    assert first.position.tolist() != second.position.tolist()
    assert torch.equal(first.position, order_epoch(DOMAIN, 0, settings).position)
    assert not first.visit.any()
    other_seed = order_epoch(DOMAIN, 0, BatchSettings(batch_size=8, seed=1))
    assert first.position.tolist() != other_seed.position.tolist()


def test_the_order_never_changes_between_versions():
    """Training resumed by another version must go on in the same order."""
    position = order_epoch(torch.zeros(8), 3, BatchSettings(batch_size=2, seed=5)).position
    assert position.tolist() == [0, 5, 7, 6, 1, 4, 2, 3]


def test_every_place_is_equally_likely():
    places = torch.stack([order_epoch(torch.zeros(6), epoch, BatchSettings()).position for epoch in range(3000)])
    counts = torch.stack([(places == k).sum(0) for k in range(6)])
    assert (counts - 500).abs().max() < 5 * 500**0.5


def test_without_shuffling_the_manifests_order_stays():
    order = order_epoch(DOMAIN, 4, BatchSettings(batch_size=8, shuffle=False))
    assert order.position.tolist() == list(range(70))


@pytest.mark.parametrize(("drop_last", "batches", "samples"), [(False, 9, 70), (True, 8, 64)])
def test_a_short_last_batch_is_kept_or_dropped(drop_last, batches, samples):
    settings = BatchSettings(batch_size=8, drop_last=drop_last)
    assert count_batches(70, settings) == batches
    assert len(order_epoch(DOMAIN, 0, settings).position) == samples


@pytest.mark.parametrize("balance", [False, True])
def test_an_epoch_may_be_shorter_and_has_other_samples_each_time(balance):
    settings = BatchSettings(batch_size=6, most=4, balance_domains=balance)
    assert count_batches(70, settings) == 4
    assert count_batches(17, settings) == (2 if balance else 3)  # no more than there are
    first, second = (order_epoch(DOMAIN, epoch, settings).position for epoch in (0, 1))
    assert len(first) == len(second) == 24
    assert set(first.tolist()) != set(second.tolist())
    drawn = {place for epoch in range(40) for place in order_epoch(DOMAIN, epoch, settings).position.tolist()}
    assert drawn == set(range(70))
    weighted = order_epoch(DOMAIN, 0, BatchSettings(batch_size=6, most=4), torch.ones(70))
    assert len(weighted.position) == 24


def test_balanced_batches_hold_equal_numbers_and_revisit_small_domains_late():
    settings = BatchSettings(batch_size=12, balance_domains=True)
    order = order_epoch(DOMAIN, 0, settings)
    assert len(order.position) == 60
    for batch in order.position.view(5, 12):
        assert torch.bincount(DOMAIN[batch]).tolist() == [4, 0, 4, 0, 0, 4]
    for number, members in ((0, 50), (2, 13), (5, 7)):
        chosen = DOMAIN[order.position] == number
        position, visit = order.position[chosen], order.visit[chosen]
        for again in range(visit.max() + 1):
            once = position[visit == again]
            assert len(once) == min(members, 20 - again * members) == len(once.unique())
    small = order.position[DOMAIN[order.position] == 5]
    assert small[:7].tolist() != small[7:14].tolist()  # each pass in an order of its own
    again = order_epoch(DOMAIN, 1, settings).position
    assert not torch.equal(order.position, again)


def test_samples_are_drawn_as_often_as_their_weights_say():
    settings = BatchSettings(batch_size=7, seed=3)
    weights = 1.0 + (DOMAIN == 5) * 9 - (DOMAIN == 2) * 1.0
    expected = 70 * weights / weights.sum()
    counts = []
    for epoch in range(200):
        order = order_epoch(DOMAIN, epoch, settings, weights)
        counts.append(torch.bincount(order.position, minlength=70))
        assert (counts[-1] >= expected.floor()).all()
        assert (counts[-1] <= expected.ceil()).all()
        for sample in range(70):
            visits = order.visit[order.position == sample]
            assert sorted(visits.tolist()) == list(range(len(visits)))  # so that augmentations differ
    torch.testing.assert_close(torch.stack(counts).double().mean(0), expected.double(), atol=0.2, rtol=0)
    first = order_epoch(DOMAIN, 0, settings, weights)
    assert torch.equal(first.position, order_epoch(DOMAIN, 0, settings, weights).position)
    assert first.position.diff().ne(0).float().mean() > 0.8  # neighbours differ: the order is mixed


def test_equal_weights_draw_every_sample_once_and_none_draw_as_before():
    settings = BatchSettings(batch_size=8)
    assert order_epoch(DOMAIN, 0, settings, torch.ones(70)).position.sort().values.tolist() == list(range(70))
    short = order_epoch(DOMAIN, 0, BatchSettings(batch_size=8, drop_last=True), torch.ones(70))
    assert len(short.position) == 64 == len(short.position.unique())


def test_weights_and_balanced_domains_exclude_each_other():
    with pytest.raises(UserError, match="drawn by weights or evenly over domains, not both"):
        order_epoch(DOMAIN, 0, BatchSettings(batch_size=12, balance_domains=True), torch.ones(70))


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("total", [64, 70, 65])
def test_slices_of_all_processes_make_up_the_batch(world_size, total):
    settings = BatchSettings(batch_size=8)
    for batch in range(count_batches(total, settings)):
        slices = [slice_batch(batch, total, settings, rank, world_size) for rank in range(world_size)]
        taken = [k for part in slices for k in range(total)[part]]
        assert taken == list(range(batch * 8, min(batch * 8 + 8, total)))
        sizes = [part.stop - part.start for part in slices]
        assert max(sizes) - min(sizes) <= 1


def test_a_balanced_batch_is_balanced_in_every_process():
    settings = BatchSettings(batch_size=12, balance_domains=True)
    order = order_epoch(DOMAIN, 0, settings)
    for rank in range(2):
        part = slice_batch(3, len(order.position), settings, rank, 2)
        assert torch.bincount(DOMAIN[order.position[part]]).tolist() == [2, 0, 2, 0, 0, 2]


@pytest.mark.parametrize(
    ("settings", "world_size", "message"),
    [
        ({"batch_size": 9}, 2, "among 2 processes"),
        ({"batch_size": 8, "balance_domains": True}, 1, "multiple of 3"),
        ({"batch_size": 6, "balance_domains": True}, 2, None),
        ({"batch_size": 12, "balance_domains": True}, 4, None),
        ({"batch_size": 72, "drop_last": True}, 1, "70 samples do not fill one batch of 72"),
    ],
)
def test_divisions_that_do_not_come_out_even_are_refused(settings, world_size, message):
    if message is None:
        check_division(DOMAIN, BatchSettings(**settings), world_size)
        return
    with pytest.raises(UserError, match=message):
        check_division(DOMAIN, BatchSettings(**settings), world_size)


def test_settings_that_contradict_are_refused():
    with pytest.raises(UserError, match="requires shuffle"):
        BatchSettings(balance_domains=True, shuffle=False)
    with pytest.raises(UserError, match="at least 1"):
        BatchSettings(batch_size=0)


PLAIN = Normalization((0, 0, 0), (1, 1, 1))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """40 images whose every pixel is their own number; number 7 is broken and left out."""
    root = tmp_path_factory.mktemp("numbers")
    records = []
    for k in range(40):
        name = f"{k:02d}.png"
        Image.fromarray(np.full((6, 6, 3), k, np.uint8)).save(root / name)
        records.append({"id": name, "path": name, "label": k % 3, "domain": k % 4})
    (root / "07.png").write_bytes(b"broken")
    table = make_image_list("numbers", root, tuple("abc"), tuple("pqrs"), records)
    return prepare(table, tmp_path_factory.mktemp("cache") / "store", skip_bad=True).store


@pytest.fixture(scope="module")
def manifest():
    """Numbers 0..29 train, 30..34 validation, 35..39 test."""
    parts = ["train"] * 30 + ["validation"] * 5 + ["test"] * 5
    rows = pd.DataFrame({"id": [f"{k:02d}.png" for k in range(40)], "part": parts})
    rows = rows.assign(label=np.arange(40) % 3, domain=np.arange(40) % 4)
    return Manifest("numbers", "by hand", {}, 0, tuple("abc"), tuple("pqrs"), rows)


def _loader(samples, transform=None, **options):
    names = ("batch_size", "seed", "shuffle", "balance_domains", "drop_last")
    settings = BatchSettings(**{name: options.pop(name) for name in names if name in options})
    return Loader(samples, settings, transform or Resize(6, PLAIN), **options)


def _numbers(batch):
    return (batch.x[:, 0, 0, 0] * 255).round().long().tolist()


def test_batches_carry_pixels_labels_domains_and_row_numbers_that_belong_together(store, manifest):
    batches = list(_loader(read_part(store, manifest, "train"), batch_size=8).epoch(0))
    assert [len(batch.y) for batch in batches] == [8, 8, 8, 5]
    seen = []
    for batch in batches:
        numbers = _numbers(batch)
        seen += numbers
        assert batch.x.shape[1:] == (3, 6, 6)
        assert batch.index.tolist() == numbers  # the part's rows are numbered as the images
        assert batch.y.tolist() == [k % 3 for k in numbers]
        assert batch.domain.tolist() == [k % 4 for k in numbers]
    assert sorted(seen) == [k for k in range(30) if k != 7]


def test_the_index_counts_within_the_part(store, manifest):
    samples = read_part(store, manifest, "validation")
    (batch,) = _loader(samples, batch_size=8, shuffle=False).epoch(0)
    assert batch.index.tolist() == [0, 1, 2, 3, 4]
    assert _numbers(batch) == [30, 31, 32, 33, 34]
    assert samples.size == 5
    assert read_part(store, manifest, "train").size == 30


def test_reading_a_part_reads_no_other(store, manifest, monkeypatch):
    read, rows = [], type(store).read
    monkeypatch.setattr(type(store), "read", lambda self, i, out=None: read.extend(i.tolist()) or rows(self, i, out))
    for place in ("device", "stream"):
        list(_loader(read_part(store, manifest, "train"), batch_size=8, place=place).epoch(0))
    assert {store.ids[row] for row in read} <= {f"{k:02d}.png" for k in range(30)}


@pytest.mark.parametrize("options", [{}, {"balance_domains": True}, {"shuffle": False}, {"drop_last": True}])
def test_resuming_at_any_batch_goes_on_exactly(store, manifest, options):
    samples = read_part(store, manifest, "train")
    augment = Augment(5, PLAIN, AugmentSettings(scale=(0.3, 1)))
    whole = list(_loader(samples, augment, batch_size=8, **options).epoch(2))
    for start in range(len(whole) + 1):
        rest = list(_loader(samples, augment, batch_size=8, place="stream", **options).epoch(2, start))
        assert len(rest) == len(whole) - start
        for expected, found in zip(whole[start:], rest, strict=True):
            assert torch.equal(expected.x, found.x)
            assert torch.equal(expected.index, found.index)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("balance_domains", [False, True])
def test_processes_together_see_the_batches_of_one(store, manifest, world_size, balance_domains):
    samples = read_part(store, manifest, "train")
    augment = Augment(5, PLAIN)
    options = {"batch_size": 16, "balance_domains": balance_domains}
    alone = list(_loader(samples, augment, **options).epoch(1))
    ranks = [
        list(_loader(samples, augment, rank=rank, world_size=world_size, **options).epoch(1))
        for rank in range(world_size)
    ]
    assert {len(batches) for batches in ranks} == {len(alone)}
    for batch, *slices in zip(alone, *ranks, strict=True):
        assert torch.equal(torch.cat([part.index for part in slices]), batch.index)
        torch.testing.assert_close(torch.cat([part.x for part in slices]), batch.x, atol=1e-5, rtol=0)


@pytest.mark.parametrize("balance_domains", [False, True])
def test_a_batch_can_be_named_and_counted_without_reading_it(store, manifest, balance_domains):
    samples = read_part(store, manifest, "train")
    loader = _loader(samples, batch_size=8, balance_domains=balance_domains)
    names = dict(zip(samples.index.tolist(), (store.ids[row] for row in samples.row), strict=True))
    for number, batch in enumerate(loader.epoch(3)):
        assert loader.ids_of(3, number) == [names[index] for index in batch.index.tolist()]
        assert loader.size_of(number) == len(batch.index)


def test_processes_without_a_sample_in_the_last_batch_get_an_empty_one(store, manifest):
    """All processes must take equally many steps."""
    samples = read_part(store, manifest, "train")
    for transform in (Augment(5, PLAIN), Resize(5, PLAIN)):
        options = {"batch_size": 4, "world_size": 4}
        sizes = [[len(b.x) for b in _loader(samples, transform, rank=rank, **options).epoch(0)] for rank in range(4)]
        assert [size[-1] for size in sizes] == [0, 0, 0, 1]
        assert {len(size) for size in sizes} == {8}


@pytest.mark.parametrize("place", ["device", "stream"])
def test_with_ranges_each_process_reads_its_own_alone(store, manifest, monkeypatch, place):
    samples = read_part(store, manifest, "train")
    (whole,) = _loader(samples, batch_size=29, shuffle=False).epoch(0)
    ranges = (range(12), range(12, 29), range(29, 29))
    read, rows, found = [], type(store).read, []
    monkeypatch.setattr(type(store), "read", lambda self, i, out=None: read.extend(i.tolist()) or rows(self, i, out))
    for rank, own in enumerate(ranges):
        read.clear()
        loader = _loader(samples, batch_size=12, shuffle=False, place=place, rank=rank, world_size=3, ranges=ranges)
        batches = list(loader.epoch(0))
        assert len(batches) == len(loader) == 5  # of four samples each; as many as those of the longest range
        assert [len(batch.y) for batch in batches] == [min(4, max(0, len(own) - 4 * k)) for k in range(5)]
        assert set(read) <= set(samples.row[own.start : own.stop].tolist())
        found += batches
        later = list(loader.epoch(0, start=2))
        assert all(torch.equal(a.x, b.x) for a, b in zip(batches[2:], later, strict=True))
    for name in ("x", "y", "domain", "index"):
        assert torch.equal(torch.cat([getattr(batch, name) for batch in found]), getattr(whole, name))


def test_a_sample_met_twice_in_an_epoch_is_augmented_anew():
    pixels = torch.randint(0, 256, (5, 9, 9, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    domain = torch.tensor([0, 1, 1, 1, 1])
    samples = PartSamples(MemoryPixels(list("abcde"), pixels), torch.arange(5), domain, domain, torch.arange(5), 5)
    (batch,) = _loader(samples, Augment(8, PLAIN), batch_size=4, balance_domains=True).epoch(0)
    first, second = batch.x[batch.domain == 0]
    assert not torch.allclose(first, second)


def test_the_epoch_changes_order_and_augmentation(store, manifest):
    loader = _loader(read_part(store, manifest, "train"), Augment(6, PLAIN), batch_size=29)
    (first,), (second,) = loader.epoch(0), loader.epoch(1)
    assert first.index.tolist() != second.index.tolist()
    assert not torch.allclose(first.x[first.index.argsort()], second.x[second.index.argsort()])


def test_images_the_store_does_not_know_are_an_error(store, manifest):
    rows = pd.DataFrame({"id": ["strange.png", "00.png"], "label": 0, "domain": 0, "part": "train"})
    other = Manifest("other", "by hand", {}, 0, ("a",), ("p",), rows)
    with pytest.raises(UserError, match=r"1 images of the manifest are not in the store .*strange\.png"):
        read_part(store, other, "train")


def test_wrong_options_are_named(store, manifest):
    samples = read_part(store, manifest, "train")
    with pytest.raises(UserError, match="unknown place for pixels 'devise': did you mean 'device'"):
        _loader(samples, batch_size=8, place="devise")
    with pytest.raises(UserError, match=r"rank must be in 0\.\.1, got 2"):
        _loader(samples, batch_size=8, rank=2, world_size=2)


def test_a_composed_part_is_blended_row_by_row():
    table = read_embedded()
    manifest = split_images(table, "adversarial", seed=3, train_size=60, test_size=20)
    digits, backgrounds = table.read_digits(), table.read_backgrounds()
    for part in ("train", "validation", "test"):
        rows, samples = manifest.part(part), render_part(table, manifest, part)
        pixels = samples.pixels.read(samples.row).numpy().astype(int)
        assert len(samples) == len(rows) == samples.size
        for k, row in rows.iterrows():
            image = backgrounds[row["domain"]]
            left, top = int(row["u"] / 65536 * 69), int(row["v"] / 65536 * 69)
            crop = image[top : top + 28, left : left + 28].astype(int)
            digit = digits[int(row["id"].removeprefix("digits/"))].astype(int)
            np.testing.assert_array_equal(pixels[k], np.abs(crop - digit[..., None]))
            assert samples.y[k] == row["label"] == table.rows["label"][int(row["id"].removeprefix("digits/"))]


def test_a_manifest_of_images_cannot_be_blended(manifest):
    with pytest.raises(UserError, match="has no crops"):
        render_part(read_embedded(), manifest, "train")
