"""One line loads a model, from wherever it is, and takes any image."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import stablenet
from stablenet import UserError
from stablenet.cli.verbs import app
from stablenet.export import export_run


@pytest.fixture
def picture(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    return tmp_path / "picture.png"


@torch.no_grad()
def test_a_run_its_export_and_the_file_give_the_same_answers(run, picture):
    exported = export_run(run)
    models = [stablenet.load_model(place) for place in (run.path, exported.file.parent, str(exported.file))]
    answers = [model(model.preprocess(picture)[None])[1] for model in models]
    for model, answer in zip(models, answers, strict=True):
        assert model.classes == run.classes
        assert not model.training
        assert torch.equal(answer, answers[0])
    last = stablenet.load_model(run.path, rule="last")
    assert not torch.equal(last(last.preprocess(picture)[None])[1], answers[0])


@torch.no_grad()
def test_preprocessing_is_that_of_training(run, picture):
    model = stablenet.load_model(run.path)
    pixels = torch.from_numpy(np.array(Image.open(picture)))
    images = run.transform(pixels[None], torch.zeros(1, dtype=torch.int64))
    for image in (picture, str(picture), Image.open(picture), pixels, pixels.numpy()):
        ready = model.preprocess(image)
        assert ready.shape == (3, 28, 28)
        assert 0 <= float(ready.min()) < float(ready.max()) <= 1
        torch.testing.assert_close(model(ready[None])[0], run.model(images))


def test_images_are_stored_smaller_first_as_in_training(run, picture):
    model = stablenet.load_model(run.path)
    whole = model.preprocess(picture)
    model.settings["store_size"] = 8
    small = model.preprocess(picture)
    assert torch.equal(small, model.preprocess(Image.open(picture)))
    assert not torch.equal(small, whole)


def test_what_is_no_model_is_refused(run, tmp_path):
    with pytest.raises(UserError, match=r"there is no model in .*: give a run folder, or one"):
        stablenet.load_model(tmp_path / "nothing")
    with pytest.raises(UserError, match="chosen when it was exported: leave the rule 'last' out"):
        stablenet.load_model(export_run(run).file.parent, rule="last")


def test_predict_takes_a_run_and_its_export(run, picture, tmp_path):
    tables = []
    for number, place in enumerate((run.path, export_run(run).file.parent)):
        output = tmp_path / f"{number}.csv"
        done = CliRunner().invoke(app, ["predict", str(place), str(picture), "-o", str(output), "--device", "cpu"])
        assert done.exit_code == 0, done.output
        tables.append(pd.read_csv(output))
    pd.testing.assert_frame_equal(*tables)
    assert tables[0]["predicted"].astype(str).isin(run.classes).all()
