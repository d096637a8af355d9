"""Real tiny runs side by side, on the command line too."""

import re

import pandas as pd
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from stablenet.cli.verbs import app
from stablenet.errors import UserError
from stablenet.saliency import SaliencySettings, choose_subjects, look, read_subjects, share_on_object, smooth_gradients
from stablenet.saliency.views import check_same_split, colour_map, spread_over_classes

SETTINGS = SaliencySettings(samples=4)


@pytest.fixture(scope="module")
def gallery(runs):
    return look(runs, choose_subjects(runs[0], 5), SETTINGS, device="cpu")


def test_images_come_class_by_class(runs):
    subjects = choose_subjects(runs[0], 12)
    assert subjects.labels == (*runs[0].classes, "0", "1")
    assert len(set(subjects.ids)) == 12
    assert choose_subjects(runs[0], 12).ids == subjects.ids


def test_few_images_of_a_class_are_not_repeated():
    y = torch.tensor([1, 0, 0, 0, 0])
    assert spread_over_classes(y, 3).tolist() == [1, 0, 4]
    assert len(set(spread_over_classes(y, 9).tolist())) == 5


def test_a_view_holds_the_runs_own_maps_and_shares(runs, gallery):
    subjects = choose_subjects(runs[0], 5)
    key = torch.zeros(1, dtype=torch.int64)
    images = torch.cat([runs[1].transform(pixels[None], key) for pixels in subjects.pixels])
    predicted = runs[1].model(images).argmax(1)
    maps = smooth_gradients(runs[1].model, images, predicted, SETTINGS)
    torch.testing.assert_close(gallery.views[1].maps, maps)
    torch.testing.assert_close(gallery.views[1].shares, share_on_object(maps, subjects.masks), equal_nan=True)
    assert [p.glances[1].predicted for p in gallery.panels] == [runs[1].classes[k] for k in predicted.tolist()]
    assert gallery.area == pytest.approx(float(subjects.masks.float().mean()))


def test_maps_are_kept_in_the_run_folder(runs, gallery, monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("computed again")

    monkeypatch.setattr("stablenet.saliency.views.smooth_gradients", fail)
    again = look(runs, choose_subjects(runs[0], 5), SETTINGS, device="cpu")
    assert torch.equal(again.views[0].maps, gallery.views[0].maps)
    with pytest.raises(AssertionError):
        look(runs, choose_subjects(runs[0], 4), SETTINGS, device="cpu")


def test_brightness_rises_with_saliency():
    colours = colour_map(torch.linspace(0, 1, 16).reshape(4, 4)).float().sum(-1).flatten()
    assert (colours.diff() >= 0).all()
    assert colours[-1] > colours[0] + 300


def test_runs_of_other_splits_are_refused(runs, other):
    with pytest.raises(UserError, match="different splits"):
        check_same_split([runs[0], other])


def test_files_of_ones_own(runs, tmp_path):
    Image.new("RGB", (28, 28), "red").save(tmp_path / "red.png")
    gallery = look(runs[:1], read_subjects(runs[0], [tmp_path / "red.png"]), SETTINGS, device="cpu")
    assert gallery.area is None
    assert gallery.panels[0].glances[0].share is None
    assert gallery.panels[0].glances[0].right is None


def call(*words):
    return CliRunner().invoke(app, ["saliency", *map(str, words)])


def test_the_command_writes_a_page_and_numbers(runs, tmp_path):
    page = tmp_path / "look.html"
    ended = call(*(run.path for run in runs), "--count", 3, "--samples", 4, "--device", "cpu", "-o", page)
    assert ended.exit_code == 0, ended.output
    text = page.read_text()
    assert text.count("<img") == 3 * 3
    assert not re.search(r"https?:(?!//www\.w3\.org/2000/svg)", text)
    rows = pd.read_csv(page.with_suffix(".csv"))
    assert len(rows) == 6
    assert rows["share_on_object"].dropna().between(0, 1).all()


def test_the_commands_mistakes(runs, other, tmp_path):
    assert isinstance(call(runs[0].path, other.path).exception, UserError)
    assert "--masks needs --images" in str(call(runs[0].path, "--masks", tmp_path).exception)
    assert "nothing" in str(call(runs[0].path, "--part", "nothing").exception)
