"""Folders that this user may not read: they are named, never passed over; one damaged run does not hide the others."""

from __future__ import annotations

import errno
import os
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from stablenet.bench.collect import scan_runs
from stablenet.cli.verbs import app
from stablenet.data.sources import read_source
from stablenet.engine.run import list_runs
from stablenet.errors import UserError
from stablenet.evaluation.predict import gather_images
from tests.engine.tiny import tiny_run


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """domain/class/image, of which one class folder may not be read, not even by root."""
    for place in ("east/cat", "east/dog", "west/cat", "west/dog"):
        (tmp_path / place).mkdir(parents=True)
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / place / "0.png")
    look = os.scandir

    def refuse(path="."):
        if Path(path).name == "dog":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return look(path)

    monkeypatch.setattr(os, "scandir", refuse)
    return tmp_path


def test_images_in_a_folder_that_may_not_be_read_are_not_passed_over(photos):
    with pytest.raises(UserError, match="dog may not be read or written by this user"):
        gather_images([photos])
    with pytest.raises(UserError, match="dog may not be read or written by this user"):
        read_source("folder", photos)


@pytest.fixture
def runs(tmp_path):
    """Two runs, the first of which is damaged."""
    tiny_run(tmp_path / "whole", "erm", "train.max_steps=1")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{")
    return tmp_path


def test_a_damaged_run_does_not_hide_the_others(runs):
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["runs", str(runs)])
    assert result.exit_code == 0
    assert "whole" in result.stdout
    assert "note: left out damaged: " in result.stderr
    with pytest.raises(UserError, match="is damaged: it is not JSON"):
        list(list_runs(runs))
    (runs / "whole").rename(runs.parent / f"{runs.name}-elsewhere")
    result = CliRunner().invoke(app, ["runs", str(runs)])
    assert isinstance(result.exception, UserError)


def test_a_run_folder_that_may_not_be_read_is_a_problem_of_its_own(runs, monkeypatch):
    collect = import_module("stablenet.bench.collect")  # the package has a function of this name
    look = collect._looks_like_run

    def refuse(path):
        if path.name == "damaged":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return look(path)

    monkeypatch.setattr(collect, "_looks_like_run", refuse)
    scan = scan_runs(runs)
    assert [run.path.name for run in scan.runs] == ["whole"]
    assert [problem.path.name for problem in scan.problems] == ["damaged"]
    assert "damaged may not be read or written by this user" in scan.problems[0].reason
