"""Weights solved for a finished run: they lower the dependence, and are kept."""

from dataclasses import replace

import pytest
import torch

from stablenet.engine.runs import load_run
from stablenet.report.weigh import MOST_FEATURES, can_weigh, weigh_run


@pytest.fixture(scope="module")
def run(made):
    return load_run(next((made / "runs").glob("embedded-dr0.9-stablenet-seed0-*")))


@pytest.fixture(scope="module")
def weighed(run):
    return weigh_run(run)


def test_weights_have_mean_one_and_lower_the_dependence(run, weighed):
    assert len(weighed.weights) == len(run.manifest.part("train"))
    assert float(weighed.weights.mean()) == pytest.approx(1, abs=1e-4)
    assert (weighed.weights >= 0).all()
    assert weighed.total[1] < weighed.total[0]
    solved = next(record for record in run.records if record["kind"] == "solve")  # with the network the run began with
    assert weighed.total == pytest.approx((solved["dependence_before"], solved["dependence_after"]), rel=0.01)
    squares = weighed.weights.sum() ** 2 / weighed.weights.square().sum()
    assert weighed.ess == pytest.approx(float(squares) / len(weighed.weights), rel=1e-5)


def test_maps_are_of_features_on_classes(weighed):
    assert weighed.on_label
    assert weighed.before.shape == weighed.after.shape
    assert weighed.before.shape[0] <= MOST_FEATURES
    assert ((weighed.before >= 0) & (weighed.before <= 1)).all()
    assert weighed.after.mean() < weighed.before.mean()


def test_the_second_time_nothing_is_solved(run, weighed, monkeypatch):
    monkeypatch.setattr("stablenet.report.weigh._solve", None)
    assert torch.equal(weigh_run(run).weights, weighed.weights)


def test_only_stablenet_weighs(made, run):
    assert can_weigh(run)
    assert not can_weigh(load_run(next((made / "runs").glob("embedded-dr0.9-erm-seed0-*"))))


def test_offsets_in_the_place_of_weights_are_not_shown_as_weights(run):
    pretrained = replace(run.config, model=replace(run.config.model, pretrained="body.safetensors"))
    weighs = replace(pretrained, method=replace(pretrained.method, parameters={"strength": 1.0}))
    assert not can_weigh(replace(run, config=pretrained))
    assert can_weigh(replace(run, config=weighs))
