"""results/paper: the page is what the published records give today."""

import gzip
import json
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stablenet.cli.verbs import app

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "results" / "paper" / "README.md"
WEIGHTS = "resnet50-imagenet-caffe-fp16.safetensors"  # whose contents are part of what a run is known by


def unpack(packed, runs):
    with gzip.open(packed, "rt") as file:
        for run in map(json.loads, file):
            folder = runs / run["folder"]
            folder.mkdir(parents=True)
            for name, text in run["files"].items():
                (folder / name).write_text(text)


@pytest.mark.slow
def test_the_page_is_what_the_records_give(tmp_path, monkeypatch):
    data = os.environ.get("STABLENET_DATA")
    if data is None or not (Path(data) / WEIGHTS).exists():
        pytest.skip("STABLENET_DATA has no ResNet-50")
    for packed in sorted((ROOT / "results").glob("*/records.jsonl.gz")):
        if packed.parent.name in ("mnist-m", "pacs", "paper"):
            unpack(packed, tmp_path / "runs")
    (tmp_path / "data").symlink_to(data)
    (tmp_path / "results").symlink_to(ROOT / "results")
    monkeypatch.chdir(tmp_path)
    (tables,) = re.findall(r"--page PAGE --tables (\S+) --root DATA", PAGE.read_text(encoding="utf-8"))
    words = ["paper", "--page", "page.md", "--tables", tables, "--root", "data"]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    assert Path("page.md").read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")
