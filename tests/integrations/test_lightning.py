"""The Lightning callback weighs a module that knows nothing of weights, and names what it cannot weigh."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

pl = pytest.importorskip("lightning.pytorch")

from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from stablenet import UserError  # noqa: E402
from stablenet.integrations import DatasetCriterion, Indexed, StableCriterion  # noqa: E402
from stablenet.integrations.lightning import DatasetCallback, StableCallback, fitting_loss  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::Warning")  # Lightning's own advice on workers and loggers


class PlainClassifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 2))
        self.criterion = nn.CrossEntropyLoss()
        self.seen = []

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, number):
        x, y = batch
        loss = self.criterion(self.model(x), y)
        self.seen.append((x, y, loss.detach()))
        return loss

    def validation_step(self, batch, number):
        x, y = batch
        self.log("plain", self.criterion(self.model(x), y))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def make_samples():
    x = torch.rand(32, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x.mean((1, 2, 3)) > 0.5).long())


def make_loader():
    return DataLoader(make_samples(), batch_size=8)


def fit(module, callback, loader=None, validation=None, ckpt_path=None, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"max_epochs": 1, **options}
        trainer = pl.Trainer(
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[callback],
            **options,
        )
        trainer.fit(module, loader or make_loader(), validation, ckpt_path=ckpt_path)
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


def make_callback():
    return DatasetCallback(["model.1"], make_samples(), num_classes=2, act="always", held_out=make_samples())


def test_an_unknowing_module_trains_on_the_whole_sets_loss(tmp_path, capsys):
    torch.manual_seed(0)
    module, callback = PlainClassifier(), make_callback()
    plain = DataLoader(make_samples(), batch_size=8)
    first = {name: value.clone() for name, value in module.state_dict().items()}
    loader = DataLoader(Indexed(make_samples()), batch_size=8)
    trainer = fit(module, callback, loader, plain, max_epochs=7, default_root_dir=tmp_path)
    x, y, loss = module.seen[0]
    assert x.shape == (8, 3, 12, 12)
    fresh = PlainClassifier()
    fresh.load_state_dict(first)
    criterion = DatasetCriterion(fresh, ["model.1"], make_samples(), num_classes=2, epochs=7, act="always")
    torch.testing.assert_close(loss, criterion(fresh(x), y, torch.arange(8)).detach())
    with torch.no_grad():
        expected = nn.functional.cross_entropy(module(make_samples().tensors[0]), make_samples().tensors[1])
    torch.testing.assert_close(trainer.callback_metrics["plain"], expected)
    told = capsys.readouterr().out
    assert "DatasetCriterion(\n  32 samples of 2 classes, features of model.1" in told
    assert told.count("of the held-out samples") == 7
    assert callback.kept.keys() == first.keys()
    checkpoint = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=False)
    assert checkpoint["state_dict"].keys() == first.keys()
    again, resumed = PlainClassifier(), make_callback()
    path = trainer.checkpoint_callback.best_model_path
    fit(again, resumed, loader, plain, ckpt_path=path, max_epochs=7, default_root_dir=tmp_path)
    torch.testing.assert_close(resumed.criterion.weighting.weights, callback.criterion.weighting.weights)


def test_what_the_callback_cannot_work_with_is_said():
    loader = DataLoader(Indexed(make_samples()), batch_size=8)
    callback = DatasetCallback(["model.1"], make_samples(), num_classes=2, attribute="loss")
    with pytest.raises(UserError, match="no criterion 'loss'"):
        fit(PlainClassifier(), callback, loader, enable_checkpointing=False)
    with pytest.raises(UserError, match="max_epochs"):
        fit(PlainClassifier(), make_callback(), loader, enable_checkpointing=False, max_epochs=-1, max_steps=2)
