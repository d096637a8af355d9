"""StableCriterion: the same loss as three lines in a loop of one's own, several taps, saved state, mistakes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from stablenet import StableWeighting, UserError
from stablenet.integrations import LOSSES, FeatureTaps, PerSampleLoss, StableCriterion
from stablenet.weighting import pool_maps


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(4 * 36, 3))


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(1)
    return torch.randn(10, 3, 8, 8, generator=g), torch.arange(10) % 3


def test_the_loss_is_that_of_three_lines_in_ones_own_loop(batch):
    x, y = batch
    model = make_model()
    criterion = StableCriterion(model, ["0"], seed=0)
    weighting = StableWeighting(seed=0)
    for _ in range(2):  # the second time with a memory
        loss = criterion(model(x), y)
        maps = model[0](x)
        per_sample = functional.cross_entropy(model[3](functional.relu(maps).flatten(1)), y, reduction="none")
        w = weighting({"0": pool_maps(maps)}, labels=y)
        criterion.taps.training = True
        torch.testing.assert_close(loss, (w * per_sample).mean())
        torch.testing.assert_close(criterion.last_weights, w)
    assert w.std() > 0.01


def test_several_taps_stand_side_by_side_and_survive_changes_in_place(batch):
    x, _ = batch
    model = make_model()
    taps = FeatureTaps(model, ["0", "1", "2"])
    model(x)
    caught = taps.take()
    maps = functional.conv2d(x, model[0].weight, model[0].bias)
    torch.testing.assert_close(caught["0"], pool_maps(maps))  # although the ReLU works in place
    torch.testing.assert_close(caught["1"], pool_maps(maps.relu()))
    torch.testing.assert_close(caught["2"], maps.relu().flatten(1))


def test_in_eval_the_loss_is_the_plain_mean(batch):
    x, y = batch
    model = make_model().eval()
    criterion = StableCriterion(model, ["0"])  # its own mode is still training
    torch.testing.assert_close(criterion(model(x), y), functional.cross_entropy(model(x), y))
    assert criterion.last_weights is None


def test_the_state_goes_on_exactly(batch):
    x, y = batch
    model = make_model()
    first, other = (StableCriterion(model, ["0"], seed=3) for _ in range(2))
    first(model(x), y)
    other.load_state_dict(first.state_dict())
    outputs = model(x.flip(0))
    torch.testing.assert_close(first(outputs, y), other(outputs, y))
    assert not any("Linear" in type(m).__name__ for m in first.modules())  # the model is no part of the criterion


def test_losses_by_hand():
    outputs, numbers = torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 1.0])
    assert LOSSES["regression"].compute(outputs, numbers).tolist() == [1, 4]
    assert LOSSES["regression"].columns(numbers).shape == (2, 1)
    logits, many = torch.zeros(2, 3), torch.tensor([[True, False, True], [False] * 3])
    torch.testing.assert_close(LOSSES["multi-label"].compute(logits, many), torch.full((2,), 2.0).log())
    assert LOSSES["multi-label"].columns(many).tolist() == [[1, 0, 1], [0, 0, 0]]
    soft = torch.tensor([[0.5, 0.5]])
    torch.testing.assert_close(LOSSES["classification"].compute(torch.zeros(1, 2), soft), torch.tensor([2.0]).log())


def test_a_loss_of_ones_own(batch):
    x, y = batch
    model = make_model()
    doubled = PerSampleLoss(lambda o, t: 2 * LOSSES["classification"].compute(o, t), lambda t: t)
    outputs = model(x)
    one = StableCriterion(model, ["0"], loss="classification", seed=0)
    two = StableCriterion(model, ["0"], loss=doubled, seed=0)
    outputs = model(x)
    torch.testing.assert_close(two(outputs, y), 2 * one(outputs, y))


def test_mistakes_are_named(batch):
    model = make_model()
    with pytest.raises(UserError, match="unknown tap 'layer1'"):
        StableCriterion(model, ["layer1"])
    with pytest.raises(UserError, match=r"taps must be a list.*none was named"):
        StableCriterion(model, [])
    with pytest.raises(UserError, match="unknown loss"):
        StableCriterion(model, ["0"], loss="hinge")
    criterion = StableCriterion(model, ["0"])
    with pytest.raises(UserError, match="run the model on the batch first"):
        criterion(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))
    model(batch[0])
    criterion.taps.remove()
    criterion.taps.take()
    model(batch[0])
    with pytest.raises(UserError, match="gave no features"):
        criterion.taps.take()
