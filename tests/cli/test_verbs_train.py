"""The verbs train, runs and list, as a user types them."""

import math
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from tests.engine.tiny import SETTINGS
from typer.testing import CliRunner

from stablenet.cli.progress import Bar, describe_figures
from stablenet.cli.verbs import app
from stablenet.errors import UserError

RUNNER = CliRunner()
ACTS = ("--set", "method.parameters.act=always")  # so few images say too little to act on
SETS = [word for setting in (*SETTINGS, "train.max_steps=3") for word in ("--set", setting)]


def invoke(*words):
    result = RUNNER.invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    done = invoke("train", "--method", "stablenet", "--device", "cpu", "--runs", runs, *SETS, *ACTS)
    assert done.exit_code == 0
    return runs, done


@pytest.mark.parametrize(
    ("note", "told"), [("", "validation 90.0 %\n"), ("it is well", "validation 90.0 % (it is well)\n")]
)
def test_the_line_of_an_epoch_ends_with_what_the_method_says(note, told):
    shown = StringIO()
    record = {"epoch": 3, "train": {"loss": 0.5}, "validation": {"accuracy": 0.9}}
    Bar(Console(file=shown, width=120)).epoch(record, note)
    assert shown.getvalue().endswith(told)


def test_figures_are_shown_by_their_names():
    values = {"loss": 0.42, "accuracy": 0.87, "dependence_before": 9.71, "dependence_after": 6.6, "ess_ratio": 0.61}
    assert describe_figures(values) == "loss 0.420  accuracy 87 %  dependence 9.71 → 6.6  ess 61 %"
    assert (
        describe_figures({"loss": 1.0, "meta_loss": 0.5, "left_after": 2.0})
        == "loss 1.000  meta loss 0.5  left after 2"
    )
    unsolved = {"loss": math.nan, "dependence_before": math.nan, "dependence_after": math.nan, "ess_ratio": 1.0}
    assert describe_figures(unsolved) == "loss nan  ess 100 %"


def test_train_prints_one_result(trained):
    runs, done = trained
    folder = next(runs.iterdir())
    assert done.stdout.splitlines()[0].startswith("trained: best source validation")
    assert str(folder) in done.stdout.replace("\n", "")
    assert "dependence " in done.stderr  # the line of the epoch


def test_a_network_that_has_not_learned_is_said_at_the_end(capsys):
    figures = {"count": 40, "accuracy": 0.5, "loss": 1.0, "per_class": {"cat": 1.0, "dog": 0.0}}
    record = {"kind": "epoch", "epoch": 1, "validation": figures}
    Bar().print_end(SimpleNamespace(records=[record], path=Path("run-1")))
    told = capsys.readouterr().out.splitlines()
    assert told[1].startswith("note: the network predicts 'cat' for every held-out image: train longer")
    assert told[-1] == "run-1"


def test_train_again_does_nothing(trained):
    runs, _ = trained
    again = invoke("train", "--method", "stablenet", "--device", "cpu", "--runs", runs, *SETS, *ACTS)
    assert "already finished, nothing to do" in again.stdout


def test_a_run_folder_is_resumed_with_its_own_config(trained):
    runs, _ = trained
    again = invoke("train", "--folder", next(runs.iterdir()), "--resume", "--device", "cpu")
    assert "already finished" in again.stdout
    with pytest.raises(UserError, match=r"train\.batch_size: 8 → 4"):
        invoke(
            "train",
            "--folder",
            next(runs.iterdir()),
            "--resume",
            *SETS,
            "--method=stablenet",
            "--set=train.batch_size=4",
        )


def test_runs_lists_it(trained):
    table = invoke("runs", trained[0]).stdout
    assert "finished" in table
    assert "stablenet" in table
    with pytest.raises(UserError, match="no runs in"):
        invoke("runs", trained[0] / "none")


def test_tensorboard_on_request(tmp_path):
    done = invoke("train", "--device", "cpu", "--folder", tmp_path / "run", "--tensorboard", "--logger", "csv", *SETS)
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))
    assert (tmp_path / "run" / "metrics.csv").read_text().startswith("step,")
    assert "--tensorboard is now --logger tensorboard" in done.stderr


def test_list_names_everything():
    shown = invoke("list").stdout
    for name in ("stablenet", "mnistm-dr0.9", "pacs-unbalanced-5-sketch", "embedded", "resnet18", "recommended"):
        assert name in shown
    assert "mnistm" not in invoke("list", "recipes", "--match", "pacs*").stdout
    with pytest.raises(UserError, match="did you mean 'recipes'"):
        invoke("list", "recipe")


def test_help_starts_without_torch():
    code = (
        "import sys; from stablenet.cli import verbs; print(sorted({'torch', 'pandas', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_help_is_quick():
    def measure():
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "stablenet", "--help"], capture_output=True, check=True)
        return time.perf_counter() - start

    assert min(measure() for _ in range(5)) <= 0.6
