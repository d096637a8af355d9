"""One home for the preset: `stablenet train` and `DatasetCriterion` train the same network on the same losses."""

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional
from torch.utils.data import TensorDataset

from stablenet.engine import train as engine
from stablenet.engine.stepping import learning_rate, make_optimizer, set_rate
from stablenet.integrations import DatasetCriterion
from tests.engine.tiny import CLASSES, begin_again, tiny_run

PLAIN = "model.name=tests.engine.tiny:PlainNet"
TAPS = 'method.parameters.taps=["stage1", "stage2"]'
LONG = (
    TAPS,
    "train.epochs=13",
    "train.log_every=1",
    "method.parameters.validation=plain",
)  # weights grow over two epochs


def train_spied(folder, monkeypatch, *settings):
    """A run, and of every step the samples' indices and what each of them adds to the loss."""
    steps, build = [], engine.build_session

    def build_spied(*args):
        session = build(*args)
        original = session.algorithm.loss

        def loss(batch):
            output = original(batch)
            weights = 1.0 if output.weights is None else output.weights
            steps.append((batch.index.clone(), (weights * output.per_sample_loss).detach()))
            return output

        session.algorithm.loss = loss
        return session

    monkeypatch.setattr(engine, "build_session", build_spied)
    return tiny_run(folder, "stablenet", PLAIN, *LONG, *settings), steps


@pytest.mark.parametrize("pretrained", [False, True])
def test_the_losses_of_every_sample_are_the_same_in_every_epoch(tmp_path, monkeypatch, pretrained):
    settings = []
    if pretrained:
        body = begin_again(tiny_run(tmp_path / "first", "erm", PLAIN))
        save_file(body.network.body.state_dict(), tmp_path / "body.safetensors")
        settings = [f"model.pretrained={tmp_path / 'body.safetensors'}"]
    run, steps = train_spied(tmp_path / "run", monkeypatch, *settings)
    algorithm, held = begin_again(run), run.open_part("train")
    network, config = algorithm.network, run.config.train
    images = run.transform(held.pixels.read(held.row), torch.zeros(len(held)))
    samples = TensorDataset(images, held.y)
    options = {"num_classes": CLASSES, "epochs": config.epochs, "pretrained": pretrained, "seed": run.config.seed}
    criterion = DatasetCriterion(
        network, ["body.stage1", "body.stage2"], samples, act="always", batch_size=8, **options
    )
    optimizer = make_optimizer(algorithm, config, torch.device("cpu"))
    each, strengths, network = len(steps) // config.epochs, set(), network.train()
    for number, (index, expected) in enumerate(steps):
        set_rate(optimizer, learning_rate(config, number // each, number, len(steps)))
        logits = network(images[index])
        loss = criterion(logits, held.y[index], index)
        weights, offsets = criterion.whole_set(index)
        alone = functional.cross_entropy(logits + offsets, held.y[index], reduction="none")
        found = alone if weights is None else weights * alone
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(loss, expected.mean(), rtol=1e-4, atol=1e-5)
        strengths.add(1.0 if weights is None else round(float(criterion.weighting.strength), 3))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert strengths == ({1.0} if pretrained else {0.0, 0.462, 0.923, 1.0})


def test_held_out_samples_judge_epochs_as_training_does(tmp_path):
    run = tiny_run(tmp_path / "run", "stablenet", PLAIN, TAPS, "train.epochs=4", keep_epochs=True)
    network = begin_again(run).network
    parts = [run.open_part(part) for part in ("train", "validation")]
    samples, held_out = (
        TensorDataset(run.transform(held.pixels.read(held.row), torch.zeros(len(held))), held.y) for held in parts
    )
    options = {"num_classes": CLASSES, "epochs": 4, "seed": run.config.seed, "act": "always"}
    criterion = DatasetCriterion(network, ["body.stage1", "body.stage2"], samples, held_out=held_out, **options)
    best = 0
    for record in (record for record in run.records if record["kind"] == "epoch"):
        found = criterion.judge(run.load_model(record["epoch"]))
        assert found.accuracy == pytest.approx(record["validation"]["accuracy"])
        assert found.weighted_accuracy == pytest.approx(record["validation"]["weighted_accuracy"], abs=1e-3)
        assert found.loss == pytest.approx(record["validation"]["loss"], rel=1e-3)
        best = record["epoch"] if found.is_best else best
    assert best == run.records[-1]["best_epoch"]
    assert network.training
