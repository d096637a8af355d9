"""Every method: a run that was stopped and resumed writes what an undisturbed one writes, bit for bit."""

from dataclasses import replace

import pytest

import stablenet.algorithms as assembled
from stablenet.algorithms import ALGORITHMS, ERM
from stablenet.engine.interrupts import Interrupted
from stablenet.engine.session import Runtime
from stablenet.engine.train import train
from tests.algorithms.cases import METHODS, method_config
from tests.engine.tiny import StopAt

pytestmark = pytest.mark.usefixtures("one_thread")
STOPS = (3, 11)  # steps inside the first and the second epoch
FILES = ("records.jsonl", "best.safetensors", "last.safetensors")


def test_every_method_is_tried_here():
    assert {name for name, _ in METHODS.values()} == set(ALGORITHMS)


def run_twice(config, folder):
    """An undisturbed run, and one that is stopped and resumed."""
    whole = train(config, Runtime(folder=folder / "whole", device="cpu"))
    for stop in STOPS:
        with pytest.raises(Interrupted):
            train(config, Runtime(folder=folder / "stopped", device="cpu", resume=True), StopAt(stop))
    return whole, train(config, Runtime(folder=folder / "stopped", device="cpu", resume=True))


@pytest.mark.parametrize("method", METHODS)
def test_stopped_and_resumed_equals_undisturbed(tmp_path, method):
    config = method_config(method)
    whole, resumed = run_twice(config, tmp_path)
    assert whole.records[0]["train"] % config.train.batch_size == 1 or config.train.balance_domains
    assert whole.records[-1]["step"] > STOPS[-1]
    for name in (*FILES, *(["weights.parquet"] if whole.keeps_weights else [])):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes(), name


class Forgetful(ERM):
    """Keeps something beside its buffers."""

    def loss(self, batch):
        self.seen = getattr(self, "seen", 0) + 1
        output = super().loss(batch)
        return replace(output, per_sample_loss=output.per_sample_loss * (1 + self.seen / 10))


def test_state_beside_the_buffers_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(assembled, "ALGORITHMS", {"erm": Forgetful})
    whole, resumed = run_twice(method_config("erm"), tmp_path)
    assert resumed.folder.records.read_bytes() != whole.folder.records.read_bytes()
