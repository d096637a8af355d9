"""The order of an epoch: complete, reproducible, divisible."""

import pytest
import torch

from stablenet.data.order import BatchSettings, check_division, count_batches, order_epoch, slice_batch
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
    with pytest.raises(UserError, match="needs shuffle"):
        BatchSettings(balance_domains=True, shuffle=False)
    with pytest.raises(UserError, match="at least 1"):
        BatchSettings(batch_size=0)
