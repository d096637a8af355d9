"""Every example runs as it stands; a framework that is not installed is skipped, visibly."""

from __future__ import annotations

import importlib
import math

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::Warning")  # other people's advice


def load(name, needs=None):
    if needs is not None:
        pytest.importorskip(needs)
    return importlib.import_module(f"examples.{name}")


def test_plain():
    plain = load("plain")
    assert plain.train(15) < plain.train(1)


@pytest.mark.parametrize("pretrained", [False, True])
def test_whole_set(pretrained):
    assert load("whole_set").train(pretrained) > 0.9


def test_several_taps(capsys):
    state = load("several_taps").train()
    assert "dependence_after" in capsys.readouterr().out
    assert any(name.startswith("criterion.weighting.memory") for name in state)


@pytest.mark.parametrize("name", ["regression", "multi_label"])
def test_other_targets(name):
    losses = load(name).train()
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", ["lightning_module", "lightning_callback"])
def test_lightning(name):
    trainer = load(name, "lightning").train(enable_progress_bar=False, enable_model_summary=False)
    assert trainer.global_step == 8
    assert trainer.lightning_module.criterion.last_weights.std() > 0


def test_huggingface_trainer():
    trainer, criterion = load("huggingface_trainer", "transformers").train()
    assert trainer.state.global_step == 3
    assert criterion.last_weights.shape == (8,)
    # Three steps of training were weighed, the evaluation was not.
    assert criterion.weighting.get_extra_state().item() == 3
    evaluated = next(entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry)
    assert math.isfinite(evaluated)


def test_timm_loop():
    losses = load("timm_loop", "timm").train()
    assert losses.count == 2 * 2 * 8
    assert math.isfinite(losses.avg)


def test_domainbed_algorithm():
    assert len(load("domainbed_algorithm").train()) == 3
