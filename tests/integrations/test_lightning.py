"""The Lightning callback weighs a module that knows nothing of weights, and names what it cannot weigh."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

pl = pytest.importorskip("lightning.pytorch")

from examples.lightning_callback import PlainClassifier  # noqa: E402
from examples.lightning_module import make_loader  # noqa: E402

from stablenet import UserError  # noqa: E402
from stablenet.integrations import StableCriterion  # noqa: E402
from stablenet.integrations.lightning import StableCallback, fitting_loss  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::Warning")  # Lightning's own advice on workers and loggers


def fit(module, callback, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[callback],
            **options,
        )
        trainer.fit(module, make_loader())
    return trainer


def test_the_callback_weighs_an_unknowing_module_and_logs(tmp_path):
    torch.manual_seed(0)
    module = PlainClassifier()
    trainer = fit(module, StableCallback(["model.1"], log_every=1), default_root_dir=tmp_path)
    assert isinstance(module.criterion, StableCriterion)
    assert module.criterion.last_weights.std() > 0
    logged = trainer.callback_metrics
    assert logged["weights/dependence_after"] < logged["weights/dependence_before"]
    checkpoint = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=True)
    assert any(name.startswith("criterion.weighting") for name in checkpoint["state_dict"])


def test_a_module_without_a_criterion_is_named():
    with pytest.raises(UserError, match="no criterion 'loss'"):
        fit(PlainClassifier(), StableCallback(["model.1"], attribute="loss"), enable_checkpointing=False)


def test_criteria_with_settings_are_not_guessed():
    assert fitting_loss(nn.MSELoss()).columns(torch.ones(3)).shape == (3, 1)
    for criterion in (nn.CrossEntropyLoss(label_smoothing=0.1), nn.CrossEntropyLoss(torch.ones(2)), nn.L1Loss()):
        with pytest.raises(UserError, match="no per-sample form"):
            fitting_loss(criterion)
