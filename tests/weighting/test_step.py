import pytest
import torch

from stablenet.weighting.memory import Samples
from stablenet.weighting.pending import ALL_GOOD, BAD_LABEL
from stablenet.weighting.presets import settings_of
from stablenet.weighting.step import join_memory, judge_values, label_rows, memory_measure


def test_weights_become_logits_of_the_same_proportions():
    settings = settings_of("published", {"memory_holds": "weights"})
    weights = torch.tensor([0.5, 1.0, 1.5, 0.0])
    shares = torch.softmax(memory_measure(weights, settings), 0)
    torch.testing.assert_close(shares, weights / weights.sum())


def test_logits_become_weights_that_sum_to_each_groups_size():
    settings = settings_of("published", {"logits": "block", "groups": 2})
    logits = torch.tensor([0.0, 1.0, 2.0, 5.0])
    weights = memory_measure(logits, settings).view(2, 2)
    torch.testing.assert_close(weights.sum(1), torch.tensor([2.0, 2.0]))
    torch.testing.assert_close((weights[:, 1] / weights[:, 0]).log(), torch.tensor([1.0, 3.0]))


def test_what_is_held_as_it_is_wanted_stays():
    held = torch.tensor([0.5, 1.5])
    assert memory_measure(held, settings_of("recommended", {})) is held
    assert memory_measure(held, settings_of("published", {})) is held


def test_the_memory_stands_before_the_batch():
    settings = settings_of("recommended", {})
    past = Samples(torch.zeros(2, 3), torch.tensor([0.5, 1.5]), torch.tensor([7, 8]))
    batch = torch.ones(1, 3), torch.tensor([9])
    rows, fixed, labels = join_memory(past, *batch, settings)
    assert rows[:, 0].tolist() == [0, 0, 1]
    assert fixed.tolist() == [0.5, 1.5]
    assert labels.tolist() == [7, 8, 9]
    rows, fixed, labels = join_memory(None, *batch, settings)
    assert (len(rows), len(fixed), labels.tolist()) == (1, 0, [9])


@pytest.mark.parametrize(
    ("spoilt", "labels", "width", "verdict"),
    [
        (None, [0, 1], None, ALL_GOOD),
        (None, [0, 1], 2, ALL_GOOD),
        (None, [0, 5], 2, BAD_LABEL),
        ((1, 2), [0, 5], 2, 2),  # the values come first
        ((0, 0), [0, 1], 2, 0),
    ],
)
def test_values_are_judged_and_cleaned(spoilt, labels, width, verdict):
    z = torch.arange(6.0).view(2, 3)
    if spoilt:
        z[spoilt] = float("inf")
    clean, found = judge_values(z, torch.tensor(labels), width)
    assert found.item() == verdict
    assert torch.isfinite(clean).all()
    assert torch.equal(clean[torch.isfinite(z)], z[torch.isfinite(z)])


def test_labels_turn_into_columns_only_where_they_are_averaged():
    labels = torch.tensor([2, 0])
    assert label_rows(labels, None) is labels
    assert label_rows(labels, 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert label_rows(torch.tensor([[0.5, 0.5]], dtype=torch.float64), None).dtype == torch.float32
