"""`stablenet data prepare` as a user runs it."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from stablenet.cli.verbs import app
from stablenet.data.store import PixelStore
from stablenet.errors import UserError


@pytest.fixture
def tree(tmp_path):
    """domain/class/image, four images each."""
    rng = np.random.default_rng(0)
    for domain in ("art", "photo"):
        for label in ("cat", "dog"):
            folder = tmp_path / "tree" / domain / label
            folder.mkdir(parents=True)
            for k in range(4):
                Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / f"{k}.png")
    return tmp_path / "tree"


def _run(*words):
    return CliRunner().invoke(app, ["data", "prepare", *map(str, words)])


def test_a_folder_becomes_a_store_and_stays_one(tree, tmp_path):
    place = tmp_path / "store"
    first = _run("folder", "--root", tree, "--store", place)
    assert first.exit_code == 0
    assert "store made: 16 images of 8 × 8" in first.output
    assert len(PixelStore.open(place)) == 16
    assert "store up to date" in _run("folder", "--root", tree, "--store", place).output


def test_the_default_place_is_the_cache_folder(tree, tmp_path, monkeypatch):
    monkeypatch.setenv("STABLENET_CACHE", str(tmp_path / "cache"))
    assert _run("folder", "--root", tree, "--size", 4).exit_code == 0
    (place,) = (tmp_path / "cache").glob("[!.]*")
    assert PixelStore.open(place).pixels.shape == (16, 4, 4, 3)


def test_copies_and_left_out_images_are_told(tree, tmp_path):
    shutil.copy(tree / "art" / "cat" / "0.png", tree / "photo" / "cat" / "0.png")
    (tree / "art" / "dog" / "2.png").write_bytes(b"broken")
    words = ("folder", "--root", tree, "--store", tmp_path / "store")
    refused = _run(*words)
    assert isinstance(refused.exception, UserError)
    assert "art/dog/2.png" in str(refused.exception)
    told = _run(*words, "--skip-bad")
    assert told.exit_code == 0
    assert "1 image left out:" in told.output
    assert "art/dog/2.png" in told.output
    assert "art/cat/0.png = photo/cat/0.png" in told.output


def test_composed_sources_have_nothing_to_prepare():
    with pytest.raises(UserError, match="there is nothing to prepare"):
        raise _run("embedded").exception


def test_the_help_starts_without_torch():
    script = (
        "import sys; from stablenet.cli.verbs import app\n"
        "try: app(['data', 'prepare', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(sum(name in sys.modules for name in ('torch', 'pandas', 'sklearn')))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0


def test_a_store_is_checked_with_and_without_its_source(tree, tmp_path):
    shutil.copy(tree / "art" / "cat" / "0.png", tree / "photo" / "cat" / "0.png")
    place = tmp_path / "store"
    _run("folder", "--root", tree, "--store", place)

    def check(*words):
        return CliRunner(env={"COLUMNS": "400"}).invoke(app, ["data", "check", *map(str, words)])

    told = check(place)
    assert told.exit_code == 0
    assert "art/cat/0.png = photo/cat/0.png" in told.output
    assert "16 images of 8 × 8" in told.output
    assert "source" not in told.output
    assert "the source is unchanged" in check(place / "store.json", "--root", tree).output
    (tree / "art" / "dog" / "2.png").unlink()
    refused = check(place, "--root", tree)
    assert refused.exit_code == 1
    assert "1 removed (for example art/dog/2.png)" in " ".join(refused.output.split())
    assert isinstance(check(tmp_path / "none.json").exception, UserError)
