"""Runs that are stopped, that fail or may not begin: what is said, what is kept, and how they go on."""

import errno
import os

import pytest
import torch

from stablenet.data.loader import Loader
from stablenet.engine.interrupts import Interrupted
from stablenet.engine.run import load_run
from stablenet.engine.stepping import EngineStepper
from stablenet.errors import UserError
from tests.engine.tiny import STABLENET, StopAt, epochs, read, tiny_run


def test_finished_run_is_left_alone(tmp_path, monkeypatch):
    run = tiny_run(tmp_path / "run", "erm", "train.epochs=1")
    before = read(run.path)
    monkeypatch.setattr("stablenet.engine.train.build_session", None)  # nothing may be built
    again = tiny_run(tmp_path / "run", "erm", "train.epochs=1")
    assert again.hash == run.hash
    assert read(run.path) == before


def test_changed_config_is_refused_with_the_difference(tmp_path):
    tiny_run(tmp_path / "run", "erm", "train.epochs=1")
    with pytest.raises(UserError, match=r"another config(.|\n)*train\.epochs: 1 → 2"):
        tiny_run(tmp_path / "run", "erm", "train.epochs=2", resume=True)


def test_ctrl_c_is_clean_and_resumable(tmp_path):
    whole = tiny_run(tmp_path / "whole", *STABLENET)
    with pytest.raises(Interrupted):
        tiny_run(tmp_path / "run", *STABLENET, watcher=StopAt(9))
    assert load_run(tmp_path / "run").status == {
        "state": "interrupted",
        "reason": "stopped by the user",
        "epoch": 1,
        "step": 9,
    }
    with pytest.raises(UserError, match=r"interrupted at step 9: continue it with --resume"):
        tiny_run(tmp_path / "run", *STABLENET)
    resumed = tiny_run(tmp_path / "run", *STABLENET, resume=True)
    assert read(resumed.path) == read(whole.path)
    assert read(resumed.path, "last.safetensors") == read(whole.path, "last.safetensors")


@pytest.mark.parametrize("method", ["erm", "stablenet"])
def test_nonfinite_loss_stops_names_the_batch_and_keeps_the_checkpoint(tmp_path, method):
    def spoil(self, number, start=0, *drawn):
        for count, batch in enumerate(original(self, number, start, *drawn)):
            if number == 1 and start + count == 2:
                batch.x[:] = float("nan")
                spoiled.extend(batch.index.tolist())
            yield batch

    original, spoiled = Loader.epoch, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Loader, "epoch", lambda self, *where: (spoil if self.settings.shuffle else original)(self, *where)
        )
        with pytest.raises(UserError, match=r"step 10.*epoch 2, batch 3") as caught:
            tiny_run(tmp_path / "run", method)
    run = load_run(tmp_path / "run")
    assert "last good checkpoint is kept" in str(caught.value)
    assert run.status["state"] == "failed"
    assert (run.path / "checkpoint.safetensors").exists()
    if method == "erm":
        assert run.manifest.part("train")["id"][spoiled[0]] in str(caught.value)
    assert len(epochs(run)) == 1
    resumed = tiny_run(tmp_path / "run", method, resume=True)  # the images are whole again
    assert resumed.status["state"] == "finished"


def test_a_loss_that_is_not_finite_at_once_keeps_nothing_and_says_so(tmp_path):
    with pytest.raises(UserError, match="training stopped, before its first checkpoint"):
        tiny_run(tmp_path / "run", "erm", "train.learning_rate=1e30")


@pytest.mark.parametrize("rate", ["1e39", "1e100", "1e300"])
def test_a_rate_beyond_single_precision_is_one_sentence(tmp_path, rate):
    with pytest.raises(UserError, match=r"lower train\.learning_rate"):
        tiny_run(tmp_path / "run", "lff", f"train.learning_rate={rate}")
    assert load_run(tmp_path / "run").status["state"] == "failed"


def test_out_of_memory_says_what_to_try(tmp_path, monkeypatch):
    def fail(self, batch):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(EngineStepper, "loss", fail)
    with pytest.raises(UserError, match=r"batches of 8: try --set train\.batch_size=4"):
        tiny_run(tmp_path / "run")
    assert load_run(tmp_path / "run").status["state"] == "failed"


def test_full_disk_is_one_sentence(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match="the disk is full"):
        tiny_run(tmp_path / "run")
    assert not list((tmp_path / "run").glob(".*.partial"))


def test_missing_gpu_is_named(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    from stablenet.engine.session import choose_device

    with pytest.raises(UserError, match="torch finds no GPU"):
        choose_device("cuda:1")
    for unknown in ("gpu", "cuda:²", "cuda:١", "cuda:-1", "cuda:" + "9" * 5000):
        with pytest.raises(UserError, match="choose auto, cpu, cuda"):
            choose_device(unknown)


def test_a_run_that_cannot_begin_leaves_nothing_behind(tmp_path):
    with pytest.raises(UserError, match="stage9"):
        tiny_run(tmp_path / "run", "stablenet", "method.parameters.taps=['stage9']")
    assert not (tmp_path / "run").exists()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / ".note").write_text("mine")
    with pytest.raises(UserError, match="stage9"):
        tiny_run(tmp_path / "kept", "stablenet", "method.parameters.taps=['stage9']")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [".note"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be created"):
        tiny_run(tmp_path / "file" / "run")


def test_another_process_in_the_folder_is_refused(tmp_path):
    from stablenet.files import hold_lock

    with pytest.raises(Interrupted):
        tiny_run(tmp_path / "run", watcher=StopAt(3))
    with hold_lock(tmp_path / "run" / ".lock"), pytest.raises(UserError, match="another process is training"):
        tiny_run(tmp_path / "run", resume=True)


def test_a_run_that_never_began_is_begun_again(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("stablenet.engine.train.build_session", None)
        with pytest.raises(TypeError):
            tiny_run(tmp_path / "run", "erm", "train.max_steps=1")
    assert tiny_run(tmp_path / "run", "erm", "train.max_steps=1").status["state"] == "finished"


def test_a_run_that_lacks_what_its_averaging_needs_leaves_no_folder(tmp_path):
    with pytest.raises(UserError, match="needs the source validation loss"):
        tiny_run(tmp_path / "run", "erm", 'train.averaging="swad"', "data.parameters.validation=0.0")
    assert not (tmp_path / "run").exists()
