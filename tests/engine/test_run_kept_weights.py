"""The file of weights: what the method used in its last epoch, whatever it solved afterwards or who interrupted."""

import numpy as np
import pandas as pd
import pytest
import torch

from stablenet.algorithms.algorithm import UsedWeights
from stablenet.engine import train as engine
from stablenet.engine.interrupts import Interrupted
from stablenet.engine.run import load_run, read_weights
from stablenet.errors import UserError
from tests.engine.tiny import STABLENET, StopAt, tiny_run

pytestmark = pytest.mark.usefixtures("one_thread")
METHODS = {
    "dataset": ("stablenet",),
    "collected": (
        "stablenet",
        "method.parameters.collect=epoch",
        "method.parameters.every=1",
    ),
    "batch": STABLENET,
    "hsic": ("hsic",),
    "cnbb": ("cnbb",),
}


@pytest.fixture
def used(monkeypatch):
    """What every sample's latest loss was computed with: {index: (weight, offset of the own class)}."""
    seen, build = {}, engine.build_session

    def build_spied(*args):
        session = build(*args)
        algorithm, loss = session.algorithm, session.algorithm.loss

        def spied(batch):
            output = loss(batch)
            weights = output.weights if output.weights is not None else algorithm.used.weights[batch.index]
            offsets = getattr(algorithm.strategy, "whole_set", None) if hasattr(algorithm, "strategy") else None
            offsets = None if offsets is None else offsets.offsets
            added = (
                offsets(batch.index)[range(len(batch.y)), batch.y] if offsets is not None else torch.zeros(len(weights))
            )
            for index, weight, offset in zip(batch.index.tolist(), weights.tolist(), added.tolist(), strict=True):
                seen[index] = (weight, offset)
            return output

        algorithm.loss = spied
        return session

    monkeypatch.setattr(engine, "build_session", build_spied)
    return seen


@pytest.mark.parametrize("method", METHODS)
def test_the_file_holds_what_entered_the_loss(tmp_path, used, method):
    run = tiny_run(tmp_path / "run", *METHODS[method], "train.drop_last=false")
    table, rows = run.weights(), run.manifest.part("train")
    assert list(table) == ["id", "label", "domain", "weight", "offset", "context"]
    assert table["id"].tolist() == rows["id"].tolist()
    assert table["label"].tolist() == [run.classes[label] for label in rows["label"]]
    assert table["domain"].tolist() == [run.manifest.domains[domain] for domain in rows["domain"]]
    assert sorted(used) == list(range(len(rows)))
    np.testing.assert_array_equal(table["weight"], np.float32([used[row][0] for row in range(len(rows))]))
    np.testing.assert_array_equal(table["offset"], np.float32([used[row][1] for row in range(len(rows))]))
    assert table["weight"].mean() == pytest.approx(1, abs=1e-3)
    assert table["weight"].std() > 0.05
    assert (table["offset"] != 0).any() == (method in ("dataset", "collected"))


def test_offsets_weakened_after_the_last_epoch_were_never_used(tmp_path, used, monkeypatch):
    monkeypatch.setattr("stablenet.weighting.recommended.context_use", lambda *figures: -9.0)
    table = tiny_run(tmp_path / "run", "stablenet", "train.drop_last=false").weights()
    np.testing.assert_array_equal(table["offset"], np.float32([used[row][1] for row in range(len(table))]))
    offset, context = table["offset"], table["context"]
    np.testing.assert_allclose(offset, 0.5 * 0.25 * context, rtol=1e-6)  # beside weights, halved after two epochs


def test_even_weights_are_kept_as_they_are(tmp_path):
    settings = ("method.parameters.strength=0.0", "method.parameters.offset=1.0")
    table = tiny_run(tmp_path / "run", "stablenet", *settings).weights()
    assert (table["weight"] == 1).all()
    assert table["offset"].std() > 0.05
    pd.testing.assert_series_equal(table["offset"], table["context"], check_names=False)


@pytest.mark.parametrize("method", ["dataset", "batch", "cnbb"])
def test_interrupted_runs_write_the_same_bytes(tmp_path, method):
    whole = tiny_run(tmp_path / "whole", *METHODS[method])
    for stop in (9, 16):
        with pytest.raises(Interrupted):
            tiny_run(tmp_path / "stopped", *METHODS[method], watcher=StopAt(stop), resume=True)
    assert not (tmp_path / "stopped" / "weights.parquet").exists()
    resumed = tiny_run(tmp_path / "stopped", *METHODS[method], resume=True)
    assert resumed.folder.weights.read_bytes() == whole.folder.weights.read_bytes()


def test_a_sample_weighs_one_until_it_was_in_a_batch():
    used = UsedWeights(4)
    used.keep(torch.tensor([2, 0]), torch.tensor([0.5, 3.0]))
    used.keep(torch.tensor([0]), torch.tensor([2.0]))
    assert used.weights.tolist() == [2.0, 1.0, 0.5, 1.0]


def test_states_from_before_weights_were_kept_are_loaded():
    used = UsedWeights(2)
    used.keep(torch.tensor([0]), torch.tensor([3.0]))
    used.load_state_dict({})
    assert used.weights.tolist() == [1.0, 1.0]


def test_runs_without_weights_say_why(tmp_path):
    plain = tiny_run(tmp_path / "plain", "erm")
    assert not plain.folder.weights.exists()
    with pytest.raises(UserError, match="has no weights: erm"):
        plain.weights()
    with pytest.raises(Interrupted):
        tiny_run(tmp_path / "stopped", "stablenet", watcher=StopAt(9))
    with pytest.raises(UserError, match="has not finished"):
        load_run(tmp_path / "stopped").weights()
    run = tiny_run(tmp_path / "stopped", "stablenet", resume=True)
    run.folder.weights.unlink()
    with pytest.raises(UserError, match="trained by a version that did not save weights: train it again"):
        run.weights()


def test_damaged_files_are_named(tmp_path):
    (tmp_path / "weights.parquet").write_bytes(b"half")
    with pytest.raises(UserError, match=r"weights\.parquet cannot be read as a table"):
        read_weights(tmp_path / "weights.parquet")
    pd.DataFrame({"id": ["a"]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(UserError, match="no column 'label'"):
        read_weights(tmp_path / "other.parquet")
