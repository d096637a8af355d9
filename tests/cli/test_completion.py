"""Shells complete names, from what the registries hold, without waiting for torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stablenet.algorithms import ALGORITHMS
from stablenet.bench.paper_tables import list_tables
from stablenet.cli import completion
from stablenet.data.sources import SOURCES
from stablenet.data.splits import SPLITS
from stablenet.engine.config import list_recipes
from stablenet.engine.monitor import LOGGERS
from stablenet.evaluation.evaluate import RULES
from stablenet.export import FORMATS
from stablenet.models import list_backbones
from stablenet.weighting.settings import PRESETS


@pytest.mark.parametrize(
    ("listed", "registered"),
    [
        (completion.list_methods, ALGORITHMS),
        (completion.list_splits, SPLITS),
        (completion.list_sources, SOURCES),
        (completion.list_recipe_names, list_recipes()),
        (completion.list_tables, list_tables()),
        (completion.list_backbones, list_backbones()),
        (lambda: completion.PRESETS, PRESETS),
        (lambda: completion.RULES, RULES),
        (lambda: completion.FORMATS, FORMATS),
        (lambda: completion.LOGGERS, LOGGERS),
    ],
)
def test_the_names_are_those_of_the_registries(listed, registered):
    assert sorted(listed()) == sorted(registered)


def complete(shell, typed, folder):
    """What a shell offers after the words, the last of which is unfinished."""
    words = typed.split(" ")
    asked = {
        "_STABLENET_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": typed,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    script = """
import sys
sys.argv = ["stablenet"]
from stablenet.cli.verbs import app
try:
    app(prog_name="stablenet")
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, **asked},
        cwd=folder,
        timeout=60,
    )
    assert done.stderr.split()[-1] == "False", "torch was imported"
    return done.stdout


@pytest.fixture
def runs(tmp_path):
    for name in ("runs/one", "runs/other", "elsewhere/third"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "records.jsonl").touch()
    (tmp_path / "runs" / "only-a-folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "offered", "not_offered"),
    [
        ("stablenet train --method st", "stablenet", "erm"),
        ("stablenet train --recipe pacs-classic-p", "pacs-classic-photo", "pacs-classic-sketch"),
        ("stablenet train --set model.n", "model.name=", "train.epochs"),
        ("stablenet bench run unb", "unbalanced-5", "classic"),
        ("stablenet report fl", "flexible-1", "classic"),
        ("stablenet data split pacs unbalanced+", "unbalanced+flexible", "classic"),
        ("stablenet diagnose em", "embedded", "pacs"),
        ("stablenet diagnose x --backbone resnet5", "resnet50", "resnet18"),
        ("stablenet evaluate runs/o", "runs/one", "only-a-folder"),
        ("stablenet predict elsewhere/", "elsewhere/third", "runs/one"),
        ("stablenet evaluate run --rule w", "worst-group", "oracle"),
    ],
)
def test_bash_offers_names(typed, offered, not_offered, runs):
    found = complete("bash", typed, runs).split()
    assert offered in found
    assert not_offered not in found


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_offer_them_too(shell, runs):
    assert "resnet50" in complete(shell, "stablenet train --set model.name=resnet5", runs)
    assert "runs/other" in complete(shell, "stablenet weights runs/", runs)


def test_settings_of_every_kind_are_completed(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert completion.complete_setting("train.swad.e") == ["train.swad.every="]
    assert completion.complete_setting("method.parameters.p") == ["method.parameters.preset="]
    assert completion.complete_setting("method.parameters.preset=p") == [
        "method.parameters.preset=paper",
        "method.parameters.preset=paper-covariance",
        "method.parameters.preset=published",
    ]
    assert completion.complete_setting("train.epochs=") == []
    assert completion.complete_run("") == []
    assert Path("runs").exists() is False
