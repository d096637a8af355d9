"""Hooks on named modules, and a pass over a data set."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from stablenet import UserError
from stablenet.models import FeatureTaps, build_network, read_features
from stablenet.models.taps import shape_tap


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 2))


def test_forms_and_a_pool_of_ones_own():
    model, x = make_model(), torch.randn(5, 3, 6, 6)
    maps = model[0](x)
    taps = FeatureTaps(model, ["0:mean", "0:std", "1:maps"])
    own = FeatureTaps(model, ["0"], pool=lambda maps: maps.amax((2, 3)))
    model(x)
    caught = taps.take()
    torch.testing.assert_close(caught["0:mean"], maps.mean((2, 3)))
    torch.testing.assert_close(caught["0:std"], maps.flatten(2).std(2, correction=0))
    torch.testing.assert_close(caught["1:maps"], maps.relu())
    torch.testing.assert_close(own.take()["0"], maps.amax((2, 3)))


def test_stop_early_runs_no_further_than_the_last_tap():
    model = make_model()
    model[3] = nn.Linear(7, 2)  # would fail if it were run
    taps = FeatureTaps(model, ["0", "1"])
    with taps.stop_early():
        model(torch.randn(5, 3, 6, 6))
    assert set(taps.take()) == {"0", "1"}
    with pytest.raises(RuntimeError, match="shapes"):
        model(torch.randn(5, 3, 6, 6))


def test_a_copied_network_has_taps_of_its_own():
    network = build_network("paper-cnn", 3, taps=["stage1"]).eval()
    copy = deepcopy(network)
    with torch.no_grad():
        for parameter in copy.body.parameters():
            parameter.zero_()
    x = torch.rand(2, 3, 28, 28)
    assert network.forward_taps(x)[1].any()
    assert not copy.forward_taps(x)[1].any()


def test_a_pass_leaves_modes_and_taps_as_they_were():
    network = build_network("paper-cnn", 3, taps=["last"])
    network.head.eval()
    read = []
    batches = [(number, torch.rand(2, 3, 28, 28)) for number in range(3)]
    network.read_taps(["stage1", "stage2:mean"], batches, lambda number, found: read.append((number, found)))
    assert [number for number, _ in read] == [0, 1, 2]
    assert list(read[0][1]) == ["stage1:meanstd", "stage2:mean"]
    assert not any(feature.requires_grad for _, found in read for feature in found.values())
    assert [str(tap) for tap in network.taps] == ["last"]
    assert network.body.training
    assert not network.head.training
    network.eval()
    network.tap(["stage1"])
    torch.testing.assert_close(read[1][1]["stage1:meanstd"], network.forward_taps(batches[1][1])[1])


def test_a_failed_pass_leaves_modes_as_they_were():
    model = make_model()
    taps = FeatureTaps(model, ["3"])

    def refuse(batch, features):
        raise UserError("no")

    def extract(x):
        assert not model.training
        model(x)
        return taps.take()

    with pytest.raises(UserError, match="no"):
        read_features(model, extract, [((), torch.randn(2, 3, 6, 6))], refuse)
    assert model.training


def test_the_border_of_maps_and_of_tokens():
    maps = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    changed = maps.clone()
    changed[..., 1:3, 1:3] = 9.0
    found = shape_tap(maps, "border")
    assert torch.equal(found, shape_tap(changed, "border"))
    assert not torch.equal(shape_tap(maps, "meanstd"), shape_tap(changed, "meanstd"))
    tokens = torch.cat([torch.full((2, 3, 1), 7.0), maps.flatten(2)], 2).movedim(1, 2)  # a class token first
    assert torch.equal(shape_tap(tokens, "border"), found)
    assert torch.equal(shape_tap(maps.movedim(1, -1), "border", channels_last=True), found)
    with pytest.raises(UserError, match="35 tokens do not form a square image"):
        shape_tap(torch.randn(2, 35, 3), "border")
