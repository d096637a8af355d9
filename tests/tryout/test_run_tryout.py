"""From a folder of images to a page and a sentence; what is said of every outcome."""

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from stablenet.bench.results import compare_seeds
from stablenet.cli.verbs import app
from stablenet.diagnose.diagnosis_page import Asked, suggest_steps
from stablenet.errors import UserError
from stablenet.tryout import Request, run_tryout
from stablenet.tryout.plan_tryout import NetworkChoice, fit_epochs, plan_tryout
from stablenet.tryout.run_tryout import Basis, tell_overrun, write_verdict

CONFIG = {"data": {"image_size": 28}, "model": {"name": "paper-cnn"}, "train": {"batch_size": 16}}


@pytest.fixture
def images(tmp_path):
    """Bright and dark squares on a red or blue ground, 64 of 30 pixels."""
    generator = np.random.default_rng(0)
    for k in range(64):
        label, ground = k % 2, (k % 2) ^ (k % 12 > 9)
        pixels = generator.integers(0, 60, (30, 30, 3))
        pixels[..., 2 * ground] += 120
        pixels[8:20, 8:20] = 40 if label else 220
        file = tmp_path / "squares" / ("red", "blue")[ground] / ("bright", "dark")[label] / f"{k}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(file)
    return tmp_path / "squares"


def test_the_command_ends_with_a_page_and_goes_on_where_it_was(images, tmp_path):
    def call(*words):
        command = [sys.executable, "-m", "stablenet", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)

    environment = {**os.environ, "STABLENET_CACHE": str(tmp_path / "cache"), "COLUMNS": "100"}
    command = ["try", "squares", "--minutes", "0.1", "--device", "cpu", "--seeds", "2"]
    done = call(*command)
    assert done.returncode == 0, done.stderr
    assert "64 images in 2 classes, 2 contexts" in done.stderr
    assert "longer than the 6 s of --minutes" in done.stderr
    assert "2 seeds, 13 test images each" in done.stdout
    page = tmp_path / "try-squares" / "index.html"
    shown = " ".join(page.read_text().split())
    assert '<p class="advice">Keep plain training. The reason: ' in shown
    assert "64 images in 2 classes, 2 contexts, no given split; a small network from random weights" in shown
    assert '<a href="diagnosis.html">the diagnosis</a>' in shown
    assert all(line.strip() in shown for line in done.stdout.splitlines() if line.startswith("  stablenet"))
    assert (tmp_path / "try-squares" / "diagnosis.html").is_file()
    bench, report = [line.strip() for line in done.stdout.splitlines() if line.startswith("  stablenet")][1:]
    runs = sorted((tmp_path / "try-squares" / "runs").glob("*/records.jsonl"))
    assert len(runs) == 4
    before = [file.stat().st_mtime_ns for file in runs]
    again = call(*command)
    assert again.stdout == done.stdout
    assert [file.stat().st_mtime_ns for file in runs] == before
    repeated = call(*bench.split()[1:])
    assert "4 of 4 runs are finished" in repeated.stderr, repeated.stderr
    assert report.startswith("stablenet report try-squares/table.toml")
    other = call(*command[:-1], "3")
    assert other.returncode == 2
    assert "holds a tryout of other data or with other options" in other.stderr


def test_what_cannot_work_is_said_first(images, tmp_path):
    with pytest.raises(UserError, match="lies among the images"):
        run_tryout(Request(place=images, output=images / "out"), print, lambda *words: None)
    with pytest.raises(UserError, match="does not exist"):
        run_tryout(Request(place=tmp_path / "none", output=tmp_path / "out"), print, lambda *words: None)
    with pytest.raises(UserError, match="seeds"):
        Request(place=images, output=tmp_path / "out", seeds=1)
    with pytest.raises(UserError, match="unknown context 'bleu': did you mean 'blue'"):
        run_tryout(Request(place=images, output=tmp_path / "out", unseen="bleu"), print, lambda *words: None)
    with pytest.raises(UserError, match="--unseen blue needs contexts, and red has none"):
        run_tryout(Request(place=images / "red", output=tmp_path / "out", unseen="blue"), print, lambda *words: None)
    for part in ("train", "test"):
        shutil.copytree(images, tmp_path / "split" / part)
    with pytest.raises(UserError, match="--unseen needs images without a split of their own"):
        run_tryout(Request(place=tmp_path / "split", output=tmp_path / "out", unseen="red"), print, lambda *words: None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty is empty: expected class/image"):
        run_tryout(Request(place=tmp_path / "empty", output=tmp_path / "out"), print, lambda *words: None)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("minutes", "epochs"), [(0.1, 3), (10, 5), (1000, 8)])
def test_epochs_are_as_many_as_fit(tmp_path, minutes, epochs):
    network = NetworkChoice({}, "", 3, 8)
    request = Request(place=tmp_path, output=tmp_path, minutes=minutes, seeds=2)
    assert fit_epochs(request, network, seconds=45.0, at_once=2) == epochs


def result(plain, ours, worst=None):
    """A filled table of two rows."""
    figures = {("erm", "all"): plain, ("stablenet", "all"): ours, ("stablenet", "worst"): worst}

    def cell(row, column):
        values = figures[row, column]
        reference = plain if column == "all" else [0.0] * len(values)
        versus = compare_seeds(dict(enumerate(values)), dict(enumerate(reference)))
        runs = [SimpleNamespace(runs=[SimpleNamespace(path="runs/x")])]
        return SimpleNamespace(
            mean=np.mean(values), deviation=np.std(values), versus=versus, values=runs, count=len(values)
        )

    columns = [SimpleNamespace(id="all"), *([SimpleNamespace(id="worst")] if worst else [])]
    return SimpleNamespace(cell=cell, columns=columns)


PLENTY = Basis(images=400, group=20)


def test_each_outcome_has_its_sentence_and_its_advice():
    sentence, advice = write_verdict(result([70, 71, 72], [80, 81, 82.1]), PLENTY)
    assert "+10.0 points (95 % interval" in sentence
    assert "; 3 seeds, 400 test images each)" in sentence
    assert advice.startswith("Use it: stablenet predict runs/x")
    assert "Do not use StableNet" in write_verdict(result([80, 81, 82.1], [70, 71, 72]), PLENTY)[1]
    assert "cannot tell a gain from chance" in write_verdict(result([70, 80, 90], [71, 78, 91]), PLENTY)[1]
    in_group = result([70, 80, 90], [71, 78, 91], [10, 11, 12])
    sentence, advice = write_verdict(in_group, PLENTY)
    assert "in the worst group of class and context +11.0 points" in sentence
    assert "; 20 images or more)" in sentence
    assert advice.startswith("Use it")
    assert "cannot tell" in write_verdict(in_group, Basis(images=400, group=4))[1]
    sentence, _ = write_verdict(result([70, 71, 72], [70, 71, 72]), PLENTY, declined="the border")
    assert "trained plainly, bit for bit" in sentence
    assert "(3 seeds, 400 test images each)" in sentence
    assert "learned nothing in 1 of 3 runs" in write_verdict(result([50, 71, 70], [70, 71, 72]), PLENTY, failed=1)[0]


@pytest.mark.parametrize(
    ("seeds", "images", "enough"), [(3, 50, True), (3, 49, False), (2, 400, False), (3, 1, False), (5, 60, True)]
)
def test_a_verdict_takes_seeds_and_test_images(seeds, images, enough):
    plain = [70.0 + 0.1 * seed for seed in range(seeds)]
    ours = [80.0 + 0.11 * seed for seed in range(seeds)]
    sentence, advice = write_verdict(result(plain, ours), Basis(images=images, group=images))
    assert advice.startswith("Use it" if enough else "Too little for a verdict: it takes 3 seeds and 50 test images")
    assert f"{seeds} seeds, {images} test image{'s' if images > 1 else ''} each" in sentence


def test_equal_differences_have_no_interval_and_no_verdict():
    sentence, advice = write_verdict(result([70, 71, 72], [80, 81, 82]), PLENTY)
    assert "+10.0 points (no interval; 3 seeds" in sentence
    assert "cannot tell a gain from chance" in advice


def test_an_overrun_is_said_before_and_after(images, tmp_path):
    request = Request(place=images, output=tmp_path / "out", minutes=0.1, seeds=2)
    request.output.mkdir()
    network = NetworkChoice(CONFIG, "a small network", 15, 40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stablenet.tryout.plan_tryout.choose_network", lambda *_: network)
        patch.setattr("stablenet.tryout.plan_tryout.time_epoch", lambda *_: 10.0)
        said = plan_tryout(request, request.open(), "cpu", at_once=1)
    assert "15 epochs, 2 seeds, plain training and StableNet: about 10 min, longer than the 6 s of --minutes" in said
    assert tell_overrun(60, 1) == ""
    assert tell_overrun(600, 2) == "it took 10 min, longer than the 2 min of --minutes"


def test_the_next_commands_read_the_same_images(tmp_path):
    request = Request(
        place=tmp_path / "list.csv", output=tmp_path / "out", part="fold", context="site", root=tmp_path / "pictures"
    )
    expected = ["--context=site", "--part=fold", f"--root={tmp_path / 'pictures'}"]
    assert request.reading == expected
    assert all(word in request.commands()[0] for word in expected)
    asked = Asked(kind="own images", data="list.csv", options=tuple(request.reading))
    assert all(word in suggest_steps(asked, "likely")[0].command for word in expected)


def test_the_verb_names_its_options():
    from typer.testing import CliRunner

    shown = CliRunner().invoke(app, ["try", "--help"], env={"COLUMNS": "200"}).output
    assert all(option in shown for option in ("--split", "--context", "--minutes", "--unseen"))
