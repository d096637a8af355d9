"""Both methods get the same budget, and the commands on the page train the same runs."""

import shlex
from dataclasses import replace

import pytest

from stablenet.demo.settings import DemoSettings, make_configs, write_commands
from stablenet.engine.assemble import assemble_config
from stablenet.errors import UserError


def test_pairs_differ_in_the_method_alone():
    configs = make_configs(DemoSettings())
    assert [config.seed for config in configs] == [0, 0, 1, 1, 2, 2]
    for reference, method in zip(configs[::2], configs[1::2], strict=True):
        assert (reference.method.name, method.method.name) == ("erm", "stablenet")
        assert replace(method, method=reference.method) == reference


def test_nothing_differs_from_the_recipe():
    plain = assemble_config("embedded-dr0.9", None, ["seed=1"])
    assert make_configs(DemoSettings())[2] == plain
    assert plain.data.parameters["ratio"] == 0.9


@pytest.mark.parametrize("epochs", [None, 4])
def test_the_commands_give_the_same_configs(epochs):
    settings = DemoSettings(epochs=epochs)
    for command, config in zip(write_commands(settings), make_configs(settings)[:2], strict=True):
        words = shlex.split(command)
        assert words[:2] == ["stablenet", "train"]
        options = [*zip(words[2::2], words[3::2], strict=True)]
        said = [value for option, value in options if option == "--set"]
        named = dict(options)
        said += [f"method.name={named['--method']}", f"seed={named['--seed']}"]
        assert assemble_config(named["--recipe"], None, said) == config


def test_workers():
    assert DemoSettings(workers=3).count_workers(6) == 3
    assert DemoSettings(workers=9).count_workers(6) == 6
    assert 1 <= DemoSettings().count_workers(6) <= 6
    with pytest.raises(UserError, match="at least 1"):
        DemoSettings(workers=0)


@pytest.mark.parametrize("seeds", [(0,), (1, 1), (0, 1, 1)])
def test_one_seed_shows_no_spread(seeds):
    with pytest.raises(UserError, match="two different seeds or more"):
        DemoSettings(seeds=seeds)
