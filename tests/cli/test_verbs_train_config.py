"""`stablenet config show` and `stablenet train --dry-run`: the whole config, and what would be done."""

import hashlib
import tomllib

import pytest
from tests.cli.test_verbs_train import invoke
from tests.engine.tiny import SETTINGS

from stablenet.engine.config import assemble_config, format_config, list_recipes, read_config
from stablenet.errors import UserError

SETS = [word for setting in SETTINGS for word in ("--set", setting)]


def test_what_is_shown_is_the_config_itself(tmp_path):
    shown = invoke(
        "config", "show", "--recipe", "embedded-dr0.9", "--method", "stablenet", "--seed", 3, "--set=train.epochs=7"
    )
    chosen = assemble_config("embedded-dr0.9", settings=["method.name=stablenet", "seed=3", "train.epochs=7"])
    assert read_config(tomllib.loads(shown.stdout)) == chosen
    assert "train.optimizer = " in shown.stdout, "defaults are spelled out"
    (tmp_path / "all.toml").write_text(shown.stdout)
    assert invoke("config", "show", "--config", tmp_path / "all.toml").stdout == shown.stdout


@pytest.mark.parametrize("name", list(list_recipes()))
def test_every_recipe_survives_being_written(name):
    config = assemble_config(name)
    assert read_config(tomllib.loads(format_config(config))) == config


def test_odd_names_and_values_survive():
    parameters = {"dominant": {'a "dog" in=the.park 🐕': "sketch\n", "": [1, 2.5e-30, True]}, "target": "ä\\"}
    config = read_config({"data": {"parameters": parameters}})
    assert read_config(tomllib.loads(format_config(config))) == config


def test_a_config_that_could_not_train_is_refused():
    with pytest.raises(UserError, match="unknown method"):
        invoke("config", "show", "--method", "stablenett")


def test_a_dry_run_prints_and_writes_nothing(tmp_path):
    done = invoke("train", "--dry-run", "--device", "cpu", "--runs", tmp_path / "runs", *SETS)
    assert read_config(tomllib.loads(done.stdout)) == assemble_config(settings=SETTINGS)
    for told in (
        "# data: tiny, split adversarial, seed 0; images: train 60, validation 15, test 15",
        "# steps: 21 in all, 7 per epoch, of 8 images",
        "# 3 classes, 8 domains",
        "of training steps, from a few steps with random images on cpu",
        "# a dry run: nothing was written",
    ):
        assert told in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_initial_weights_is_told_with_its_hash(tmp_path):
    (tmp_path / "net.safetensors").write_bytes(b"weights")
    found = hashlib.sha256(b"weights").hexdigest()
    done = invoke("train", "--dry-run", "--root", tmp_path, *SETS, "--set=model.pretrained=net.safetensors")
    assert f"# initial weights: net.safetensors, SHA-256 {found}" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("--method", "erm", "--set", "method.name=stablenet"),
        ("--method", "erm", "--set", "method.name=inf"),
        ("--seed", 1, "--set", "seed=2"),
    ],
)
def test_two_values_for_one_setting_are_refused(words):
    with pytest.raises(UserError, match="contradict each other"):
        invoke("config", "show", *words)
    invoke("config", "show", "--method", "erm", "--set", "method.name=erm", "--seed", 1, "--set", "seed=1")
