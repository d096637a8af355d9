"""A change of the preset is a new version; runs of an earlier one are told apart, found, and continued as begun."""

import hashlib
import json
from dataclasses import replace

import pytest

from stablenet.algorithms import ALGORITHMS
from stablenet.engine.identity import Contents, identify, name_version, recall_identity, recall_version
from stablenet.engine.identity import restate as restate_config
from stablenet.weighting import recommended
from stablenet.weighting.recommended import CHANGES, CURRENT, FIRST, restate
from tests.engine.tiny import tiny_config

# Of the constants of version 2. Where this differs, either the change computes nothing else, or it needs a new version
# in `recommended.py` with what the earlier one did in `restate`, and the tables of `results/` state it.
# `KINDS` and `BLANK` came before version 2 was released; no decision of a published run is known to change
# (results/natural/division.md).
CONSTANTS = "68e2ccc455fb"
OTHERS = {"PRESETS", "FIRST", "CURRENT", "CHANGES"}  # names in capitals that compute nothing
PRETRAINED = ("model.name=resnet18", "model.pretrained=some-weights")


def config_of(*settings):
    """Of a run that leaves to the preset whether to act."""
    config = tiny_config("stablenet", *settings)
    left = {name: value for name, value in config.method.parameters.items() if name != "act"}
    return replace(config, method=replace(config.method, parameters=left))


def hash_of(config):
    return identify(config, Contents()).hash


def test_a_change_of_the_constants_is_noticed():
    names = {name for name in vars(recommended) if name.isupper()} - OTHERS
    constants = {name: repr(getattr(recommended, name)) for name in names}
    text = json.dumps(constants, sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == CONSTANTS
    assert set(CHANGES) == {FIRST, CURRENT}


def test_what_release_0_1_did_is_stated():
    assert restate({}, FIRST, pretrained=False) == {"act": "always"}
    stages = {"taps": ["stage1", "stage2"]}
    assert restate({}, FIRST, pretrained=True) == {"act": "always", "offset": 1.0, **stages}
    assert restate({"strength": 1.0}, FIRST, pretrained=True)["offset"] == 0.5
    assert restate({"offset": 0.0}, FIRST, pretrained=True) == {"act": "always", "offset": 0.0, **stages}
    assert restate({"taps": ["last"]}, FIRST, pretrained=True) == {"act": "always", "taps": ["last"]}
    assert restate({}, CURRENT, pretrained=True) == {}
    for parameters in ({}, {"strength": 1.0}, {"strength": 0.5, "components": 8}):
        stated = restate(parameters, FIRST, pretrained=True)
        plan = ALGORITHMS["stablenet"].read_settings(stated).plan(pretrained=True)
        assert plan.offset == 1 - plan.strength / 2, "as release 0.1 had it"


@pytest.mark.parametrize("word", ["preset=paper", "solve=batch", "preset=published"])
def test_only_the_preset_for_whole_sets_has_versions(word):
    config = config_of(f"method.parameters.{word}")
    assert name_version(config) == name_version(tiny_config("erm")) == ""
    assert "preset_version" not in identify(config, Contents()).hashed["method"]


def test_todays_run_is_not_the_one_of_release_0_1():
    for config in (config_of(), config_of("method.parameters.preset=recommended"), config_of(*PRETRAINED)):
        old = identify(config, Contents(), FIRST)
        assert "preset_version" not in old.hashed["method"]
        assert identify(config, Contents()).hashed["method"]["preset_version"] == CURRENT
        assert old.hash != hash_of(config)
        assert recall_version(config, old.hashed) == FIRST
        assert recall_identity(config, old.hashed).hash == hash_of(restate_config(config, FIRST)) != hash_of(config)
        now = identify(config, Contents())
        assert recall_identity(config, now.hashed).hash == now.hash
