"""`stablenet data list --cache` and `stablenet data clear-cache` as a user types them."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from stablenet.cli.verbs import app
from stablenet.cli.verbs_data import write_size


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("STABLENET_CACHE", str(folder))
    monkeypatch.setenv("STABLENET_DATA", str(tmp_path / "data"))
    for name, size in (("cache/features-a", 1_500_000), ("cache/.b.partial-x", 20), ("data", 3_000)):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_bytes(b"x" * size)
    return folder


def run(*words, answer=None):
    return CliRunner(env={"COLUMNS": "160"}).invoke(app, ["data", *words], input=answer)


def test_place_and_size_by_kind(cache):
    shown = run("list", "--cache").output
    assert f"cache: {cache}" in shown
    rows = {line.split("│")[1].strip(): line for line in shown.splitlines() if line.startswith("│")}
    assert "1.5 MB" in rows["features"]
    assert "0 B" in rows["stores"]
    assert "3.0 kB" in rows["downloads"]


def test_clearing_asks_first(cache):
    refused = run("clear-cache", answer="n\n")
    assert refused.exit_code == 1
    assert (cache / "features-a").is_dir()
    done = run("clear-cache", answer="y\n")
    assert done.exit_code == 0
    assert "1.5 MB freed" in done.output
    assert not list(cache.glob("*a"))


def test_clearing_one_kind_without_asking(cache):
    assert "20 B freed" in run("clear-cache", "--kind", "unfinished", "--yes").output
    assert (cache / "features-a").is_dir()
    assert "nothing to clear" in run("clear-cache", "--kind", "stores").output


def test_sizes_are_rounded():
    assert [write_size(size) for size in (0, 999, 1500, 3e12)] == ["0 B", "999 B", "1.5 kB", "3000.0 GB"]
