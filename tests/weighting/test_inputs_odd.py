"""What the weighting refuses: labels that are no numbers, that change their form, indices that are none."""

from __future__ import annotations

import pytest
import torch

from stablenet.errors import UserError
from stablenet.weighting import DatasetWeighting, StableWeighting, effective_sample_size, solve_dataset
from stablenet.weighting.inputs import ALL_GOOD, BAD_LABEL
from stablenet.weighting.module import judge_values

Z = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(8) % 2
COLUMNS = torch.nn.functional.one_hot(Y).float()
MEMORIES = [{"memory": "queue"}, {"memory": "average", "groups": 2}]


def spoil(columns, value):
    spoiled = columns.clone()
    spoiled[3, 0] = value
    return spoiled


@pytest.mark.parametrize("memory", MEMORIES, ids=["queue", "average"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e200])
def test_labels_that_are_no_numbers_never_enter_the_memory(memory, value):
    weighting = StableWeighting(seed=0, **memory)
    weighting(Z, labels=COLUMNS)
    before = {name: tensor.clone() for name, tensor in weighting.state_dict().items()}
    with pytest.raises(UserError, match="labels hold NaN, inf"):
        weighting(Z, labels=spoil(COLUMNS.double(), value))
    assert all(torch.equal(before[name], tensor) for name, tensor in weighting.state_dict().items())
    assert weighting(Z, labels=COLUMNS).isfinite().all()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_on_a_device_they_are_judged_and_leave_zeros(value):
    _, labels, verdict = judge_values(Z, spoil(COLUMNS, value), None)
    assert verdict == BAD_LABEL
    assert labels.isfinite().all()
    assert judge_values(Z, COLUMNS, None)[2] == ALL_GOOD


@pytest.mark.parametrize("memory", MEMORIES, ids=["queue", "average"])
@pytest.mark.parametrize(("first", "second"), [(Y, COLUMNS[:, :1]), (COLUMNS, COLUMNS[:, :1]), (COLUMNS, Y)])
def test_labels_that_change_their_form_are_refused(memory, first, second):
    weighting = StableWeighting(seed=0, **memory)
    weighting(Z, labels=first)
    with pytest.raises(UserError, match="labels of the same form"):
        weighting(Z, labels=second)
    weighting.reset()
    weighting(Z, labels=second)


def test_averaged_classes_may_come_as_their_columns():
    weighting = StableWeighting(seed=0, memory="average")
    weighting(Z, labels=Y)
    assert weighting(Z, labels=COLUMNS).isfinite().all()


def test_types_of_classes_are_one():
    """Otherwise the type of the first batch's labels would cut off those of later ones."""
    weighting, same = StableWeighting(seed=0), StableWeighting(seed=0)
    for labels in (Y > 0, (Y * 300).to(torch.int16)):
        weights = weighting(Z, labels=labels)
        assert torch.equal(weights, same(Z, labels=labels.long()))


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (["a"] * 8, "must be a tensor"),
        (COLUMNS[:, :0], "no columns"),
        (Y + 10**9, "number the classes from 0"),
        (Y.to(torch.complex64), "integer classes"),
        (Y[:-1], "one row per sample"),
    ],
)
def test_other_labels_are_refused(labels, told):
    with pytest.raises(UserError, match=told):
        StableWeighting(seed=0)(Z, labels=labels)
    with pytest.raises(UserError, match=told):
        solve_dataset(Z, labels)


def test_negative_classes_have_no_column():
    with pytest.raises(UserError, match="numbered from 0"):
        StableWeighting(seed=0, memory="average")(Z, labels=Y - 1)


@pytest.mark.parametrize(
    ("index", "told"),
    [
        (torch.arange(8.0), "whole numbers"),
        (torch.arange(8) + 1, "must lie in 0..7"),
        (torch.arange(8) - 1, "must lie in 0..7"),
        (torch.ones(8, dtype=torch.bool), "whole numbers"),
        (list(range(8)), "must be a tensor"),
        (torch.arange(7), "one entry per sample"),
    ],
)
def test_an_index_is_the_place_of_a_sample(index, told):
    weighting = DatasetWeighting(num_samples=8)
    with pytest.raises(UserError, match=told):
        weighting.collect(index, Z, Y)
    if len(index) == 8:
        with pytest.raises(UserError, match=told):
            weighting(index)


def test_collected_batches_have_one_form():
    weighting = DatasetWeighting(num_samples=8)
    weighting.collect(torch.arange(4), Z[:4], Y[:4])
    with pytest.raises(UserError, match="features have 2 columns"):
        weighting.collect(torch.arange(4), Z[:4, :2], Y[:4])
    with pytest.raises(UserError, match="one form in all batches"):
        weighting.collect(torch.arange(4), Z[:4], COLUMNS[:4])


@pytest.mark.parametrize("size", [2, 3, 8, 100])
def test_a_batch_never_collapses_to_one_sample(size):
    z = torch.randn(size, 6, generator=torch.Generator().manual_seed(1))
    weighting = StableWeighting(
        "paper", seed=0, min_ess=0.0, learning_rate=1e6, penalty=0.0, keep="last", on_rise="go-on"
    )
    assert effective_sample_size(weighting(z)) >= min(2.0, (size + 1) / 2) - 1e-3
