"""`recommended` decides from its training data whether to act; where it does not, it is plain training to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from stablenet.data.sources import SOURCES
from stablenet.diagnose.diagnoses import ImageChoices, Observed, diagnose_images
from stablenet.diagnose.subject import extract_features, open_run
from stablenet.engine.monitor import Watcher
from stablenet.errors import UserError
from stablenet.models.network import Backbone, Network
from stablenet.values import SettingError
from stablenet.weighting.evidence import extract_bank
from tests.engine.tiny import make_table, tiny_config, tiny_run

SOURCE, AUTO = "data.source=centred", "method.parameters.act=auto"
RANDOM, TIED = (SOURCE, "data.parameters.ratio=random"), (SOURCE, "data.parameters.ratio=0.9")


def read_centred(root=None):
    """The tiny source, its bars kept off the border, where they would predict the label."""
    table = make_table()
    digits = table.read_digits().copy()
    middle = np.zeros_like(digits, dtype=bool)
    middle[:, 8:20, 8:20] = True
    digits[~middle] = 0
    return replace(table, name="centred", read_digits=lambda: digits)


SOURCES.add("centred", replace(SOURCES["tiny"], name="centred", read=read_centred))


class Listener(Watcher):
    def __init__(self):
        self.solves = []

    def solve(self, record):
        self.solves.append(record)


def parameters(run):
    return run.load_model("last").state_dict()


def epochs(run):
    return [record for record in run.records if record["kind"] == "epoch"]


def solves(run):
    return [record for record in run.records if record["kind"] == "solve"]


@pytest.mark.parametrize("collect", ["pass", "epoch"])
def test_without_a_tie_it_is_plain_training_to_the_bit(tmp_path, collect):
    heard = Listener()
    more = () if collect == "pass" else ("method.parameters.collect=epoch", "method.parameters.every=1")
    plain = tiny_run(tmp_path / "erm", "erm", *RANDOM)
    ours = tiny_run(tmp_path / "ours", "stablenet", *RANDOM, *more, AUTO, watcher=heard)
    [solve] = heard.solves
    assert solve["acts"] == 0
    assert "border" in solve["decision"]
    assert solve["border_over_middle_at_least"] < solve["border_over_middle"]
    assert solve["contexts_predict"] < 0.1
    for name, value in parameters(plain).items():
        assert torch.equal(parameters(ours)[name], value), name
    for one, other in zip(epochs(plain), epochs(ours), strict=True):
        assert one["validation"]["accuracy"] == other["validation"]["accuracy"]
        assert one["train"]["loss"] == other["train"]["loss"]
        assert "weighted_accuracy" not in other["validation"]
    assert bool((ours.weights()["weight"] == 1).all())


def test_with_a_tie_it_acts_and_says_so(tmp_path):
    run = tiny_run(tmp_path, "stablenet", *TIED, AUTO)
    [solve] = solves(run)
    assert solve["acts"] == 1
    assert solve["border_predicts"] > 0.1
    assert not bool((run.weights()["weight"] == 1).all())


@pytest.mark.parametrize(("ratio", "acts"), [(RANDOM, 0), (TIED, 1)])
def test_domains_decide_where_they_are_asked(tmp_path, ratio, acts):
    run = tiny_run(tmp_path, "stablenet", *ratio, "method.parameters.act=domains", "train.epochs=1")
    [solve] = solves(run)
    assert solve["acts"] == acts
    assert "named contexts" in solve["decision"]
    assert (solve["contexts_predict"] >= 0.1) == acts


@pytest.mark.parametrize("ratio", [RANDOM, TIED])
def test_the_diagnosis_decides_as_training_does(tmp_path, ratio):
    """Whatever the size of the network's images and their normalization."""
    small = ("data.image_size=20", "model.parameters.image_size=20", "data.mean=[0.5,0.5,0.5]", "train.epochs=1")
    run = tiny_run(tmp_path, "stablenet", *ratio, *small, AUTO)
    [solve] = solves(run)
    subject = open_run(run, None)
    extract = Observed(extract_bank)
    extract_features(subject, extract, subject.side)
    figures = extract.decide(torch.from_numpy(subject.y), torch.from_numpy(subject.context)).figures
    assert figures == {name: solve[name] for name in figures}
    assert len(figures) == 9
    found = diagnose_images(subject, ImageChoices())
    assert any(solve["decision"] in reason for reason in found.verdict.reasons)


def test_always_does_not_ask(tmp_path):
    run = tiny_run(tmp_path, "stablenet", *RANDOM, "method.parameters.act=always", "train.epochs=1")
    [solve] = solves(run)
    assert "decision" not in solve


class StopAt(Watcher):
    def step(self, step, epoch, totals):
        if step == 10:
            raise RuntimeError("the machine is switched off")


def test_a_resumed_run_keeps_its_decision(tmp_path):
    whole = tiny_run(tmp_path / "whole", "stablenet", *RANDOM, AUTO)
    with pytest.raises(RuntimeError, match="switched off"):
        tiny_run(tmp_path / "parts", "stablenet", *RANDOM, AUTO, watcher=StopAt(), checkpoint_minutes=0)
    again = tiny_run(tmp_path / "parts", "stablenet", *RANDOM, AUTO, resume=True)
    assert again.records == whole.records
    for name, value in parameters(whole).items():
        assert torch.equal(parameters(again)[name], value), name


def test_frozen_statistics_stay_in_training():
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network = Network(Backbone(body, 4), 2)
    network.keep_statistics()
    network.train()
    before = body[1].running_mean.clone()
    network(torch.randn(8, 3, 6, 6)).sum().backward()
    assert torch.equal(body[1].running_mean, before)
    assert body[1].weight.grad is not None
    assert network.head.training


def test_frozen_statistics_need_weights_that_bring_them():
    with pytest.raises((SettingError, UserError), match="statistics"):
        tiny_config("erm", "model.statistics=frozen")
