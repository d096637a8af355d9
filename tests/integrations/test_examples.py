"""Every example runs as it stands; a framework that is not installed is skipped, visibly."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.filterwarnings("ignore::Warning")  # other people's advice


QUIET = {"enable_progress_bar": False, "enable_model_summary": False}


def load(name, needs=None):
    if needs is not None:
        pytest.importorskip(needs)
    return importlib.import_module(f"examples.{name}")


def test_plain(capsys):
    assert load("plain").train(epochs=12) > 0.6  # plain cross-entropy: 0.54
    told = capsys.readouterr().out
    assert "acts: colours and textures at the border predict" in told
    assert told.count("of the held-out samples") == 12
    assert "the best so far" in told


def test_several_taps(capsys):
    state = load("several_taps").train()
    assert "dependence_after" in capsys.readouterr().out
    assert any(name.startswith("criterion.weighting.memory") for name in state)


@pytest.mark.parametrize("name", ["regression", "multi_label"])
def test_other_targets(name):
    losses = load(name).train()
    assert losses[-1] < 0.8 * losses[0]


def test_lightning_module(capsys):
    trainer = load("lightning_module", "lightning").train(2, **QUIET)
    assert trainer.global_step == 2 * 19
    check_told(capsys, epochs=2)


def test_lightning_callback(capsys):
    trainer, callback = load("lightning_callback", "lightning").train(2, **QUIET)
    assert trainer.global_step == 2 * 19
    check_told(capsys, epochs=2)
    assert callback.found.epoch == 2


def test_huggingface_trainer(capsys):
    trainer = load("huggingface_trainer", "transformers").train(1)
    assert trainer.state.global_step == 37
    check_told(capsys, epochs=1)
    evaluated = next(entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry)
    assert math.isfinite(evaluated)


def test_timm_loop(capsys):
    losses = load("timm_loop", "timm").train(1)
    assert losses.count == 1167
    assert math.isfinite(losses.avg)
    check_told(capsys, epochs=1)


def check_told(capsys, epochs):
    """What was found, and how every epoch did."""
    told = capsys.readouterr().out
    assert "acts: colours and textures at the border predict" in told
    assert told.count("of the held-out samples") == epochs
    assert "the best so far" in told


def test_domainbed_algorithm():
    assert len(load("domainbed_algorithm").train()) == 3


def test_every_example_is_run_here_and_from_the_checkout():
    """Where `python examples/x.py` finds what it imports: no example imports another as part of a package."""
    tested = Path(__file__).read_text(encoding="utf-8")
    for file in sorted(EXAMPLES.glob("*.py")):
        assert f'"{file.stem}"' in tested or file.stem == "toy", file.name  # the toy: tests/docs
        assert "from examples" not in file.read_text(encoding="utf-8"), file.name


def test_an_example_runs_as_a_file():
    command = [sys.executable, "-W", "ignore", "examples/regression.py"]
    done = subprocess.run(command, cwd=EXAMPLES.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("loss ")
