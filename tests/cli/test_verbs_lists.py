"""`stablenet weights`: prints by class, writes what it is asked for, and says what a run lacks."""

import pandas as pd
import pytest
from tests.engine.tiny import tiny_run
from typer.testing import CliRunner

from stablenet.cli.verbs import app
from stablenet.errors import UserError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return tiny_run(tmp_path_factory.mktemp("weights") / "run", "stablenet")


def call(*words):
    return CliRunner().invoke(app, ["weights", *map(str, words)])


def test_classes_are_printed_and_nothing_is_written(run):
    before = sorted(run.path.iterdir())
    result = call(run.path)
    assert result.exit_code == 0
    table = run.weights()
    for name in run.classes:
        (line,) = (words for line in result.stdout.splitlines() if (words := line.split()) and words[0] == name)
        own = table[table["label"] == name]
        assert line[1] == str(len(own))
        assert line[4:] == [f"{own['weight'].max():.2f}", f"{own['weight'].min():.2f}"] + [
            f"{own[column].mean():.2f}" for column in ("offset", "context")
        ]
    assert sorted(run.path.iterdir()) == before


def test_files_that_are_asked_for(run, tmp_path):
    result = call(run.path, "--csv", tmp_path / "all.csv", "-o", tmp_path / "sheet.html", "--per-class", 3)
    assert result.exit_code == 0
    assert len(pd.read_csv(tmp_path / "all.csv")) == len(run.weights())
    assert (tmp_path / "sheet.html").read_text().count("<img ") == 2 * 3 * len(run.classes)
    assert "sheet.html" in result.stdout
    assert call(run.path, "-o", tmp_path / "sheet.png").exit_code == 0
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")


def test_runs_without_weights_and_wrong_endings_are_told(run, tmp_path):
    plain = tiny_run(tmp_path / "plain", "erm")
    found = call(plain.path).exception
    assert isinstance(found, UserError)
    assert "has no weights" in str(found)
    assert isinstance(call(run.path, "-o", tmp_path / "sheet.pdf").exception, UserError)
    assert isinstance(call(tmp_path).exception, UserError)
