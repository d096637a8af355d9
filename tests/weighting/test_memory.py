"""The memory: averaged groups and the queue by hand, short and invalid batches, saved state."""

import pytest
import torch

from stablenet.errors import UserError
from stablenet.weighting.memory import AveragedMemory, QueueMemory, WeightedRows
from stablenet.weighting.settings import settings_of


def averaged(**overrides):
    return AveragedMemory(settings_of("paper", overrides))


def queue(**overrides):
    return QueueMemory(settings_of("recommended", overrides))


def batch(values, weights=None, labels=None):
    rows = torch.tensor(values, dtype=torch.float32)[:, None]
    measure = torch.ones(len(rows)) if weights is None else torch.tensor(weights)
    return WeightedRows(rows, measure, labels)


def put(memory, samples, valid=None):
    memory.check(samples.features, samples.labels)
    memory.start(samples.features, samples.labels)
    memory.write(samples, valid)
    memory.advance(len(samples.features))


def test_first_batch_fills_every_group():
    memory = averaged(groups=3)
    assert memory.recall() is None
    put(memory, batch([1.0, 2.0]))
    assert memory.recall().features.squeeze(1).tolist() == [1, 2, 1, 2, 1, 2]


def test_groups_average_with_their_own_alpha():
    memory = averaged(groups=2, alphas=(0.5, 0.9))
    put(memory, batch([0.0, 0.0], [1.0, 1.0]))
    put(memory, batch([1.0, 2.0], [0.5, 1.5]))
    past = memory.recall()
    torch.testing.assert_close(past.features.squeeze(1), torch.tensor([0.5, 1.0, 0.1, 0.2]))
    torch.testing.assert_close(past.measure, torch.tensor([0.75, 1.25, 0.95, 1.05]))


def test_alphas_run_from_short_to_long_memory():
    assert settings_of("paper", {"groups": 1}).alpha_of_groups() == (0.9,)
    low, middle, high = settings_of("paper", {"groups": 3}).alpha_of_groups()
    assert (low, high) == (0.9, pytest.approx(0.99))
    assert middle == pytest.approx((0.9 * 0.99) ** 0.5)


def test_short_batch_updates_the_first_rows_and_the_block_keeps_its_sum():
    memory = averaged(alphas=(0.5,))
    put(memory, batch([0.0, 0.0, 0.0], [0.5, 1.0, 1.5]))
    put(memory, batch([4.0], [1.0]))
    past = memory.recall()
    assert past.features.squeeze(1).tolist() == [2, 0, 0]
    assert past.measure.sum().item() == pytest.approx(3)


def test_a_longer_batch_fills_the_rows_a_short_first_one_left():
    memory = averaged(memory_rows=4, alphas=(0.5,))
    put(memory, batch([2.0]))
    assert memory.recall().features.numel() == 1  # no zeros enter the statistic
    put(memory, batch([4.0, 6.0, 8.0]))
    assert memory.recall().features.squeeze(1).tolist() == [3, 6, 8]


def test_labels_are_averaged_with_their_rows():
    memory = averaged(alphas=(0.75,))
    memory.label_width = 2
    put(memory, batch([0.0], labels=torch.tensor([[1.0, 0.0]])))
    put(memory, batch([0.0], labels=torch.tensor([[0.0, 1.0]])))
    assert memory.recall().labels.tolist() == [[0.75, 0.25]]


def test_running_mean_starts_at_zero_and_turns_into_the_average_after_ten():
    memory = averaged(memory_start="running-mean", memory_rows=2)
    memory.start(torch.zeros(1, 1), None)
    assert memory.recall().features.squeeze(1).tolist() == [0, 0]
    for value in range(10):
        put(memory, batch([float(value), 1.0]))
    torch.testing.assert_close(memory.features[0, :, 0], torch.tensor([4.5, 1.0]))
    put(memory, batch([14.5, 1.0]))
    torch.testing.assert_close(memory.features[0, 0, 0], torch.tensor(0.9 * 4.5 + 0.1 * 14.5))


def test_queue_holds_the_last_samples_as_they_were():
    memory = queue(groups=2)
    for start in range(4):
        put(memory, batch([2.0 * start, 2.0 * start + 1], labels=torch.tensor([start, start])))
    past = memory.recall()
    assert sorted(past.features.squeeze(1).tolist()) == [4, 5, 6, 7]
    order = past.features.squeeze(1).argsort()
    assert past.labels[order].tolist() == [2, 2, 3, 3]


def test_queue_wraps_around_with_short_batches():
    memory = queue(groups=2, memory_rows=2)
    for values in ([0.0, 1.0], [2.0], [3.0, 4.0], [5.0]):
        put(memory, batch(values))
    assert sorted(memory.recall().features.squeeze(1).tolist()) == [2, 3, 4, 5]


def test_queue_weights_sum_to_its_rows():
    memory = queue(groups=2)
    put(memory, batch([0.0, 1.0], [0.4, 1.6]))
    put(memory, batch([2.0, 3.0], [1.0, 1.0]))
    put(memory, batch([4.0], [1.0]))  # takes the place of the row that weighed 0.4
    past = memory.recall()
    assert past.measure.sum().item() == pytest.approx(4)
    assert (past.measure[1] / past.measure[0]).item() == pytest.approx(1.6)


@pytest.mark.parametrize("make", [averaged, queue])
def test_an_invalid_batch_leaves_no_trace(make):
    memory = make()
    put(memory, batch([1.0, 2.0]))
    before = memory.recall()
    memory.write(batch([7.0, 8.0], [0.0, 2.0]), torch.tensor(False))
    after = memory.recall()
    assert torch.equal(before.features, after.features)
    assert torch.equal(before.measure, after.measure)


@pytest.mark.parametrize("make", [averaged, queue])
def test_state_survives_saving(make):
    memory, other = make(groups=2), make(groups=2)
    for values in ([1.0, 2.0], [3.0], [4.0, 5.0]):
        put(memory, batch(values))
    other.load_state_dict(memory.state_dict())
    for each in (memory, other):
        put(each, batch([6.0, 9.0]))
    assert torch.equal(memory.recall().features, other.recall().features)
    assert torch.equal(memory.recall().measure, other.recall().measure)


@pytest.mark.parametrize("make", [averaged, queue])
def test_what_cannot_be_stored_is_refused_with_the_remedy(make):
    memory = make()
    put(memory, batch([1.0, 2.0]))
    with pytest.raises(UserError, match=r"batch of 3 is larger than the memory's 2 rows.*memory_rows=3"):
        memory.check(torch.zeros(3, 1), None)
    with pytest.raises(UserError, match=r"5 columns, the memory was filled with 1.*reset"):
        memory.check(torch.zeros(2, 5), None)
    memory.reset()
    put(memory, WeightedRows(torch.zeros(3, 5), torch.ones(3), None))
    assert memory.recall().features.shape == (3, 5)
