"""Both methods get the same budget; a run that fails is named, and a stopped demo goes on."""

import shlex
from dataclasses import replace

import pytest

from stablenet.demo.demo_runs import RECIPE, DemoSettings, make_configs, make_order, train_all, write_commands
from stablenet.engine.config import assemble_config
from stablenet.engine.run import load_run
from stablenet.engine.session import Runtime
from stablenet.engine.train import train
from stablenet.errors import UserError

SHORT = ["train.epochs=1", "method.name=stablenet"]


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


def test_a_failing_run_is_named_and_stops_the_others(tmp_path):
    broken = assemble_config(RECIPE, None, [*SHORT, 'method.parameters.taps=["nowhere"]'])
    waiting = assemble_config(RECIPE, None, [*SHORT, "seed=5"])
    with pytest.raises(UserError, match=f"the run {broken.name} failed: .*unknown tap 'nowhere'"):
        train_all([broken, waiting], tmp_path, 1, lambda name, epoch: None)
    assert not list(tmp_path.glob("*seed5*"))


def test_a_stopped_demo_goes_on(tmp_path):
    """Ctrl-C after an epoch: the run stands at a checkpoint; the same call takes it up, with the records of one that
    was left in peace.
    """
    small = ["data.parameters.train_size=100", "data.parameters.test_size=20", "train.batch_size=20"]
    config = assemble_config(RECIPE, None, ["method.name=erm", "train.epochs=20", *small])

    def stop(name, epoch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_all([config], tmp_path / "stopped", 1, stop)
    stopped = load_run(make_order(config, tmp_path / "stopped").folder)
    state, done = stopped.status["state"], stopped.status["epoch"]
    assert state == "interrupted"
    assert 0 < done < 20
    told = []
    (run,) = train_all([config], tmp_path / "stopped", 1, lambda name, epoch: told.append((name, epoch)))
    assert run.path == stopped.path
    assert told == [(config.name, epoch) for epoch in (*range(done + 1, 21), 20)]
    (calm,) = train_all([config], tmp_path / "calm", 1, lambda name, epoch: None)
    for name in ("records.jsonl", "evaluation.jsonl", "last.safetensors"):
        assert (run.path / name).read_bytes() == (calm.path / name).read_bytes()


def test_a_run_lies_where_the_engine_puts_it(tmp_path):
    config = assemble_config(RECIPE, None, ["train.epochs=1", "train.max_steps=1", "data.parameters.test_size=20"])
    run = train(config, Runtime(runs=tmp_path, device="cpu"))
    assert make_order(config, tmp_path).folder == str(run.path.absolute())


def test_an_evaluation_that_is_missing_is_made_up_for(tmp_path):
    config = assemble_config(RECIPE, None, ["train.epochs=1", "train.max_steps=1", "data.parameters.test_size=20"])
    (run,) = train_all([config], tmp_path, 1, lambda name, epoch: None)
    file = run.path / "evaluation.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text(lines[0])
    train_all([config], tmp_path, 1, lambda name, epoch: None)
    assert file.read_text() == "".join(lines)
