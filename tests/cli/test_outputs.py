"""An output never overwrites what the command reads, nor another output; nothing is written before that is known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stablenet.cli.outputs import check_outputs
from stablenet.cli.verbs import app
from stablenet.errors import UserError

TABLE = "a,b,y\n" + "".join(f"{k % 7},{k % 5},{k % 2}\n" for k in range(60))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(TABLE)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["diagnose", "t.csv", "--target", "y", "--output", "t.csv"], "--output would overwrite t.csv"),
        (["diagnose", "t.csv", "--target", "y", "--csv", "./t.csv"], "--csv would overwrite t.csv"),
        (["table", "fit", "t.csv", "--target", "y", "--page", "link.csv"], "--page would overwrite"),
        (["table", "fit", "t.csv", "--target", "y", "--weights", "t.csv"], "--weights would overwrite t.csv"),
        (["table", "fit", "t.csv", "--target", "y", "--weights", "t.html"], "--page and --weights name the same"),
        (["data", "split", "image-list", "--root", "t.csv", "--output", "t.csv"], "--output would overwrite t.csv"),
        (["data", "show", "t.csv", "--output", "t.csv"], "--output would overwrite t.csv"),
        (["saliency", "run", "--images", "t.csv", "--output", "t.html"], "the table of numbers would overwrite t.csv"),
        (["weights", "run", "--csv", "w.csv", "--output", "w.csv"], "--csv and --output name the same"),
        (["saliency", "run", "--output", "."], ". is a folder, but a file is needed"),
        (["diagnose", "t.csv", "--target", "y", "--output", "."], ". is a folder, but a file is needed"),
        (["table", "fit", "t.csv", "--target", "y", "--page", ".."], ".. is a folder, but a file is needed"),
        (["table", "fit", ".", "--target", "y"], ". is a folder, but a file is needed"),
    ],
)
def test_what_is_read_is_not_overwritten(here, words, option):
    (here / "link.csv").symlink_to("t.csv")
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith(option)
    assert (here / "t.csv").read_text() == TABLE
    assert {path.name for path in here.iterdir()} == {"t.csv", "link.csv"}


def test_other_files_folders_and_devices_may_be_named(here):
    check_outputs({"--page": Path("new.html"), "--save": None}, [Path("t.csv"), None, Path()])
    check_outputs({"--page": Path(os.devnull), "--weights": Path(os.devnull)})
