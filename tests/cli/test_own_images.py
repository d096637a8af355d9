"""One's own images as a new user hands them over: what stopped the way once, with the commands that did."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

from stablenet.cli.verbs import app
from stablenet.data.manifest import Manifest
from stablenet.engine.run import load_run
from stablenet.errors import UserError

PER_CLASS = 30
TRAIN = ("--device", "cpu", "--set", "train.epochs=1", "--set", "train.batch_size=16", "--set", "train.milestones=[]")
SMALL = ("--set", "data.image_size=16", *TRAIN)


def run(*words: object) -> str:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, [str(word) for word in words])
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with photographs of several sizes: a folder of classes, and lists of them."""
    rng = np.random.default_rng(0)
    rows = []
    for number, label in enumerate(("cat", "dog")):
        for k in range(PER_CLASS):
            file = tmp_path / "photos" / label / f"{k}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(100 * number, 100 * number + 100, (*rng.integers(14, 30, 2), 3), np.uint8)
            Image.fromarray(pixels).save(file)
            where = "in" if (k % 5 > 0) == (number == 0) else "out"
            part = ("train", "train", "train", "val", "Test")[k % 5]
            rows.append((f"photos/{label}/{k}.png", label, where, part))
    table = pd.DataFrame(rows, columns=["path", "label", "domain", "part"])
    table.to_csv(tmp_path / "photos.csv", index=False)
    table.drop(columns="part").to_csv(tmp_path / "plain.csv", index=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STABLENET_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STABLENET_DATA", raising=False)
    return tmp_path


def test_a_given_split_is_not_trained_on(place: Path) -> None:
    with pytest.raises(UserError, match=r"photos comes with a split \(train 36, validation 12, test 12\), which"):
        run("data", "split", "image-list", "classic", "--root", "photos.csv", "--target", "in")
    said = run("data", "split", "image-list", "--root", "photos.csv")
    assert "split given: train 36, validation 12, test 12" in said
    manifest = Manifest.load(Path("splits/image-list-given-seed0.tsv"))
    assert set(manifest.part("test")["id"]) == {f"photos/{c}/{k}.png" for c in ("cat", "dog") for k in range(4, 30, 5)}
    anew = run(
        "data", "split", "image-list", "classic", "--root", "photos.csv", "--target", "in", "--column", "part=none"
    )
    assert "split classic: train 27, validation 3, test 30" in anew
    assert "FAILS" not in run("data", "check", "splits/image-list-given-seed0.tsv", "--root", "photos.csv")


def test_the_diagnosis_sees_the_training_part_alone(place: Path) -> None:
    run("diagnose", "photos.csv", "-o", "page.html", "--csv", "ranked.csv", "--part", "none")
    assert len(pd.read_csv("ranked.csv")) == 60
    with pytest.raises(UserError, match="photos is too small to diagnose: 36 images in 2 classes; at least 50"):
        run("diagnose", "photos.csv", "-o", "page.html")


def test_photographs_of_several_sizes_without_contexts_or_a_target(place: Path) -> None:
    """`paper-cnn` is built for 28 pixels, `class/image` was refused, and so were images of several sizes."""
    said = run("train", "--set", "data.source=folder", "--root", "photos", "--folder", "run", *SMALL)
    assert "split held-out: train 43, validation 5, test 12" in said
    opened = load_run("run")
    assert opened.config.data.store_size is None
    assert opened.stored_side == json.loads(Path("run/config.json").read_text())["stored_side"] == 16
    evaluated = run("evaluate", "run", "--root", "photos", "--device", "cpu")
    assert "cat" in evaluated
    kept = pd.read_parquet("run/predictions-source-validation-test.parquet").set_index("id")
    assert len(kept) == 12
    run("predict", "run", "photos", "--device", "cpu", "-o", "all.parquet")
    files = pd.read_parquet("all.parquet").set_index("path")
    again = files.loc[[f"photos/{name}" for name in kept.index]]
    np.testing.assert_allclose(again[["p_cat", "p_dog"]], kept[["p_cat", "p_dog"]], atol=1e-5)
    assert "nothing to do" in run("train", "--set", "data.source=folder", "--root", "photos", "--folder", "run", *SMALL)
    (place / "lists").mkdir()
    pd.read_csv("plain.csv").head(4).to_csv("lists/apart.csv", index=False)
    run("predict", "run", "lists/apart.csv", "--root", ".", "--device", "cpu", "-o", "some.parquet")
    some = pd.read_parquet("some.parquet")
    assert list(some["path"]) == list(pd.read_csv("plain.csv")["path"].head(4))
    np.testing.assert_allclose(some["p_cat"], files.loc[some["path"], "p_cat"], atol=1e-5)


def test_a_list_with_its_own_names_trains_on_its_own_split(place: Path) -> None:
    table = pd.read_csv("photos.csv").rename(columns={"label": "species", "domain": "site", "part": "fold"})
    (place / "lists").mkdir()
    table.to_csv("lists/photos.csv", index=False)
    config = 'data.columns={label="species", context="site", part="fold"}'
    words = ("--set", "data.source=image-list", "--set", "data.image_list=lists/photos.csv", "--set", config)
    said = run("train", *words, "--root", ".", "--folder", "run", *SMALL)
    assert "split given: train 36, validation 12, test 12" in said
    assert load_run("run").manifest.domains == ("in", "out")
    run("evaluate", "run", "--root", ".", "--device", "cpu")
    assert len(pd.read_parquet("run/predictions-source-validation-test.parquet")) == 12
    names = ("--column", "label=species", "--column", "context=site", "--column", "part=fold")
    where = ("--root", ".", "--image-list", "lists/photos.csv")
    assert "split given" in run("data", "split", "image-list", *where, *names, "--out", "m.tsv")
    assert "up to date" in run("data", "prepare", "image-list", *where, *names, "--size", "16")


def test_absolute_paths_serve_everywhere(place: Path) -> None:
    table = pd.read_csv("plain.csv")
    table.assign(path=[str(place / path) for path in table["path"]]).to_csv("absolute.csv", index=False)
    for name in ("plain", "absolute"):
        run("data", "split", "image-list", "--root", f"{name}.csv", "--out", f"{name}.tsv")
        run("diagnose", f"{name}.csv", "-o", "page.html", "--csv", f"ranked-{name}.csv")
    assert Path("plain.tsv").read_text() == Path("absolute.tsv").read_text()
    assert list(pd.read_csv("ranked-plain.csv")["id"]) == list(pd.read_csv("ranked-absolute.csv")["id"])
    assert ">StableNet diagnosis · absolute ·" in Path("page.html").read_text()


def test_a_folder_that_would_not_be_read_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default the bundled digits are trained on, whatever folder is named."""
    with pytest.raises(UserError, match=r"nothing of --root photos would be read: .*--set data\.source=folder"):
        run("train", "--root", "photos", *TRAIN)
    assert not Path("runs").exists()
    monkeypatch.setenv("STABLENET_DATA", str(place))  # which is for other sources
    run("train", *TRAIN, "--set", "train.max_steps=1", "--dry-run")


def test_a_missing_file_is_named_before_any_is_read(place: Path) -> None:
    Path("photos/dog/7.png").unlink()
    for words in (
        ("diagnose", "plain.csv", "-o", "page.html"),
        ("data", "split", "image-list", "--root", "plain.csv"),
        ("train", "--set", "data.source=image-list", "--root", "plain.csv", *SMALL),
    ):
        with pytest.raises(
            UserError, match=r"1 file listed in plain\.csv not found: photos/dog/7\.png; sought.* \(--root"
        ):
            run(*words)
    assert not Path("runs").exists()


def test_a_file_that_is_no_image_is_named_before_anything_is_trained(place: Path) -> None:
    """`try` diagnosed without it, and the first training failed on it."""
    Path("photos/dog/7.png").write_text("<html>not found</html>")
    with pytest.raises(
        UserError, match=r"1 of 60 images of plain cannot be decoded.*\n  photos/dog/7\.png: not an image"
    ):
        run("try", "plain.csv", "--minutes", "0.1", "--device", "cpu")
    assert not Path("try-plain").exists()
    with pytest.raises(UserError, match=r"1 of 60 images .* cannot be decoded.*\n  photos/dog/7\.png: not an image"):
        run("train", "--set", "data.source=image-list", "--root", "plain.csv", *SMALL)


def test_a_list_in_the_working_directory_is_split_there(place: Path) -> None:
    said = run("data", "split", "image-list", "classic", "--root", "plain.csv", "--target", "in")
    assert said.startswith("splits/image-list-classic-in-seed0.tsv: split classic")
    with pytest.raises(UserError, match="inside the source folder"):
        run("data", "split", "image-list", "--root", "plain.csv", "--out", "photos/cat/1.png")


def test_what_cannot_be_trained_is_one_sentence_before_it_starts(place: Path) -> None:
    own = ("train", "--set", "data.source=folder", "--root", "photos", *SMALL)
    with pytest.raises(UserError, match="photos has only one domain, all: classic would leave no image to train on"):
        run(*own, "--set", "data.split=classic", "--set", "data.parameters.target=all")
    with pytest.raises(UserError, match=r"model\.parameters\.image_size must be data\.image_size, 16, .* got 28"):
        run(*own, "--set", "model.parameters.image_size=28")
    with pytest.raises(UserError, match="needs a target: one of in, out; held-out needs none"):
        run("data", "split", "image-list", "classic", "--root", "plain.csv")
    assert not Path("runs").exists()
