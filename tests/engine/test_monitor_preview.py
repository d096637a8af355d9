"""A dry run says what training would do, and does nothing."""

from pathlib import Path

import pytest
import torch

from stablenet.engine.config import assemble_config
from stablenet.engine.monitor import preview
from stablenet.engine.session import Runtime
from stablenet.engine.train import train
from stablenet.engine.trial import time_image
from stablenet.errors import UserError
from stablenet.files import Lines, read_lines
from tests.engine.tiny import SETTINGS

SHORT = ["train.epochs=2", "train.max_steps=13"]


def list_files(folder):
    return sorted((path, path.stat().st_mtime_ns) for path in Path(folder).rglob("*"))


def test_it_is_what_training_then_does(tmp_path, monkeypatch):
    monkeypatch.setenv("STABLENET_CACHE", str(tmp_path / "cache"))
    runtime = Runtime(runs=tmp_path / "runs", device="cpu")
    config = assemble_config(settings=[*SETTINGS, *SHORT])
    seen = preview(config, runtime)
    assert list_files(tmp_path) == []
    assert (seen.state, seen.measured) == ("", 0)
    run = train(config, runtime)
    assert run.path == seen.folder
    assert run.manifest.hash == seen.manifest.hash
    assert run.records[0]["steps_per_epoch"] == seen.steps_per_epoch
    shorter = preview(assemble_config(settings=[*SETTINGS, "train.epoch_steps=2"]), runtime)
    assert shorter.steps_per_epoch == 2 < seen.steps_per_epoch
    assert run.status["step"] == seen.steps == 13
    before = list_files(tmp_path)
    again = preview(config, runtime)
    assert list_files(tmp_path) == before
    assert (again.state, again.measured) == ("finished", 1)
    speeds = [line["images_per_second"] for line in read_lines(run.folder.timing) if line["kind"] == "epoch"]
    assert again.seconds == pytest.approx(13 * 8 / (sum(speeds) / 2))
    assert preview(assemble_config(settings=[*SETTINGS, "method.name=focal"]), runtime).measured == 0


def test_where_no_speed_is_known_a_few_steps_are_timed(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("stablenet.engine.monitor.time_image", lambda *words: asked.append(words) or 0.25)
    seen = preview(assemble_config(settings=[*SETTINGS, *SHORT]), Runtime(runs=tmp_path, device="cpu"))
    assert asked == [("paper-cnn", {"image_size": 12}, 12, 3, 8, "cpu")]
    assert seen.seconds == 13 * 8 * 0.25
    state = torch.get_rng_state()
    assert 0 < time_image("paper-cnn", {"image_size": 12}, 12, 3, 8, "cpu") < 10
    assert torch.equal(state, torch.get_rng_state())


def test_speeds_of_another_device_say_nothing(tmp_path):
    runtime = Runtime(runs=tmp_path, device="cpu")
    config = assemble_config(settings=[*SETTINGS, "train.max_steps=2"])
    run = train(config, runtime)
    assert preview(config, runtime).measured == 1
    lines = Lines(run.folder.timing)
    lines.append({"kind": "session", "device": "cuda: another"})
    lines.append({"kind": "epoch", "epoch": 3, "images_per_second": 1e9})
    lines.close()
    assert preview(config, runtime).measured == 0


def test_what_training_would_refuse_is_refused(tmp_path):
    for setting, told in (
        ("train.batch_size=5000", "do not fill one batch of 5000"),
        ("method.parameters.none=1", "none"),
        ("data.source=nowhere", "unknown data source"),
    ):
        with pytest.raises(UserError, match=told):
            preview(assemble_config(settings=[*SETTINGS, setting]), Runtime(runs=tmp_path, device="cpu"))
    with pytest.raises(UserError, match="unknown logger"):
        preview(assemble_config(settings=SETTINGS), Runtime(runs=tmp_path, device="cpu", loggers=("printer",)))
