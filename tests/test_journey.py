"""The whole way as a user goes it, on the command line: prepare, train, resume, evaluate, predict, export, ONNX."""

import json
import os
import subprocess
import sys
import time
from collections import namedtuple
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from PIL import Image

from stablenet.cli.main import run as main

Ended = namedtuple("Ended", "returncode stdout stderr")
CLASSES, DOMAINS, SIDE = ("cat", "dog"), ("art", "photo", "sketch"), 16
TARGET, PER_CELL = "sketch", 24


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("journey")


@pytest.fixture(scope="module")
def tree(place):
    """Domains differ in tint; a cat is bright on its left half, a dog on its right."""
    rng = np.random.default_rng(0)
    for number, domain in enumerate(DOMAINS):
        for label in CLASSES:
            folder = place / "images" / domain / label
            folder.mkdir(parents=True)
            for k in range(PER_CELL):
                pixels = rng.integers(0, 120, (SIDE, SIDE, 3))
                pixels[..., number] += 40
                half = slice(None, SIDE // 2) if label == "cat" else slice(SIDE // 2, None)
                pixels[:, half] += 80
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{k}.png")
    return place / "images"


@pytest.fixture(scope="module")
def stablenet(place, tree):
    """Run the command with these words in the journey's folder; `.start` does so in a process of its own."""
    settings = {"STABLENET_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}

    def run(*words):
        out, err = StringIO(), StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.chdir(place)
            patch.delenv("STABLENET_DATA", raising=False)
            patch.setattr(sys, "argv", ["stablenet", *map(str, words)])
            for name, value in settings.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main()
        return Ended(ended.value.code or 0, out.getvalue(), err.getvalue())

    def start(*words):
        environment = {**os.environ, **settings}
        environment.pop("STABLENET_DATA", None)
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([sys.executable, "-m", "stablenet", *words], cwd=place, env=environment, **pipes)

    run.start = start
    return run


TRAIN = [
    *("train", "--folder", "run", "--root", "images", "--device", "cpu", "--checkpoint-minutes", "0"),
    *("--set", "data.source=folder", "--set", "data.split=classic", "--set", f"data.parameters.target={TARGET}"),
    *("--set", f"data.image_size={SIDE}", "--set", f"model.parameters.image_size={SIDE}"),
    *("--set", "train.batch_size=16", "--set", "train.epochs=6", "--set", "train.milestones=[]"),
    *("--method", "stablenet"),
]


@pytest.fixture(scope="module")
def trained(place, stablenet, tree):
    """Prepared, killed in the middle of training, and brought to its end with --resume."""
    prepared = stablenet("data", "prepare", "folder", "--root", "images")
    assert prepared.returncode == 0, prepared.stderr
    assert "144 images of 16 × 16" in prepared.stdout
    process = stablenet.start(*TRAIN)
    checkpoint, deadline = place / "run" / "checkpoint.safetensors", time.monotonic() + 120
    while not checkpoint.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    before = stablenet(*TRAIN)
    assert before.returncode == 2
    assert "--resume" in before.stderr
    resumed = stablenet(*TRAIN, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    again = stablenet(*TRAIN)
    assert "nothing to do" in again.stdout
    return place / "run"


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_records_of_a_resumed_run_are_whole(trained):
    records = read_lines(trained / "records.jsonl")
    assert [record["epoch"] for record in records if record["kind"] == "epoch"] == [1, 2, 3, 4, 5, 6]
    assert json.loads((trained / "status.json").read_text())["state"] == "finished"


def test_evaluate_counts_what_it_wrote(trained, stablenet):
    done = stablenet("evaluate", trained, "--root", "images", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    kept = pd.read_parquet(trained / "predictions-source-validation-test.parquet")
    assert set(kept["domain"]) == {TARGET}
    accuracy = (kept["class"] == kept["predicted"]).mean()
    assert f"{100 * accuracy:.1f} %" in done.stdout
    (record,) = read_lines(trained / "evaluation.jsonl")
    assert record["figures"]["accuracy"] == accuracy
    assert record["figures"]["count"] == len(kept)


def test_validation_after_training_equals_validation_in_training(trained, stablenet):
    done = stablenet("evaluate", trained, "--root", "images", "--part", "validation", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    after = next(line for line in read_lines(trained / "evaluation.jsonl") if line["part"] == "validation")
    within = next(
        record["validation"]
        for record in read_lines(trained / "records.jsonl")
        if record["kind"] == "epoch" and record["epoch"] == after["epoch"]
    )
    assert after["figures"]["accuracy"] == within["accuracy"]
    assert after["figures"]["loss"] == pytest.approx(within["loss"], rel=1e-5)


def test_predict_gives_what_evaluate_gives(trained, stablenet, tree, place):
    done = stablenet("predict", trained, f"images/{TARGET}", "--device", "cpu", "-o", "predicted.parquet")
    assert done.returncode == 0, done.stderr
    predicted = pd.read_parquet(place / "predicted.parquet").set_index("path")
    stablenet("evaluate", trained, "--root", "images", "--device", "cpu")
    kept = pd.read_parquet(trained / "predictions-source-validation-test.parquet").set_index("id")
    assert len(kept) <= len(predicted) == 2 * PER_CELL
    both = predicted.loc[[f"images/{name}" for name in kept.index]]
    for column in ("p_cat", "p_dog"):
        np.testing.assert_allclose(both[column], kept[column], atol=1e-5)


def test_predict_prints_csv_for_a_table_and_leaves_out_broken_files(trained, stablenet, tree, place):
    (place / "broken.png").write_bytes(b"no image")
    (place / "list.csv").write_text("path,owner\nimages/art/cat/0.png,Ann\nbroken.png,Ben\n")
    refused = stablenet("predict", trained, "list.csv", "--device", "cpu")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "cannot read the image broken.png" in refused.stderr
    assert "Traceback" not in refused.stderr
    done = stablenet("predict", trained, "list.csv", "--device", "cpu", "--skip-bad")
    assert done.returncode == 0, done.stderr
    header, row = done.stdout.splitlines()
    assert header == "path,owner,predicted,probability,p_cat,p_dog"
    assert row.startswith("images/art/cat/0.png,Ann,")
    assert "left out" in done.stderr


def test_onnx_elsewhere_gives_the_same_outputs(trained, stablenet, tree, place):
    done = stablenet("export", trained, "--format", "safetensors", "--format", "onnx", "--format", "torch", "-o", "out")
    assert done.returncode == 0, done.stderr
    files = {path.name for path in (place / "out").iterdir()}
    assert files == {"model.safetensors", "model.onnx", "model.pt2", "config.json", "README.md"}
    stablenet("predict", trained, "images/photo", "--device", "cpu", "-o", "photo.csv")
    predicted = pd.read_csv(place / "photo.csv")
    images = [np.asarray(Image.open(place / path), np.float32) / 255 for path in predicted["path"]]
    session = onnxruntime.InferenceSession(place / "out" / "model.onnx", providers=["CPUExecutionProvider"])
    _, probabilities = session.run(None, {"images": np.stack(images).transpose(0, 3, 1, 2)})
    np.testing.assert_allclose(probabilities, predicted[["p_cat", "p_dog"]], atol=1e-5)


def test_mistakes_end_in_one_sentence(trained, stablenet, tree):
    cases = {
        ("evaluate", "nowhere"): "not a run folder",
        ("evaluate", trained, "--rule", "best"): "unknown selection rule 'best'",
        ("evaluate", trained, "--rule", "oracle"): "needs target metrics",
        ("predict", trained, "nowhere.png"): "does not exist",
        ("predict", trained, "images", "-o", "x.xlsx"): "written as .csv or .parquet",
        ("export", trained, "--format", "tflite"): "unknown format 'tflite'",
    }
    for words, message in cases.items():
        done = stablenet(*words)
        assert done.returncode == 2, words
        assert message in done.stderr
        assert "Traceback" not in done.stderr
