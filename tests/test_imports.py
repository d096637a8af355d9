"""Modules of the user's own: the installed command and its workers find them, beside a table or where it is called."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stablenet.errors import UserError
from stablenet.imports import import_own, search_folders

METHOD = """
from stablenet.algorithms import ALGORITHMS, ERM


class Mine(ERM):
    pass


ALGORITHMS.add("mine", Mine)
"""
NET = """
from torch import nn


class Net(nn.Module):
    def __init__(self, image_size=28):
        super().__init__()
        self.num_features = 4
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, images):
        return self.body(images)
"""
SETTINGS = {"data.parameters.train_size": 100, "data.parameters.test_size": 20, "train.max_steps": 1}
TABLE = """
imports = ["beside", "package.here"]
[settings]
data.parameters = { train_size = 100, test_size = 20 }
train = { epochs = 1, max_steps = 1, milestones = [], batch_size = 20 }
model = { name = "beside_net:Net" }
[[column]]
id = "one"
recipe = "embedded-dr0.9"
[[row]]
id = "mine"
method = "mine"
"""


@pytest.fixture
def search(monkeypatch):
    """What a test adds to the search and imports is forgotten after it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def run_script(folder: Path, *words: str, code: int = 0) -> str:
    """The installed command, with nothing on its path but what it puts there itself."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "STABLENET_DATA")}
    script = Path(sys.executable).parent / "stablenet"
    environment |= {"COLUMNS": "200", "OMP_NUM_THREADS": "1", "STABLENET_CACHE": str(folder / ".cache")}
    done = subprocess.run([script, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("where", [(), pytest.param(("--ray-address", "local"), marks=pytest.mark.slow)])
def test_a_table_finds_modules_beside_it_and_in_the_current_folder(tmp_path, where):
    tables, here = tmp_path / "tables", tmp_path / "here"
    (here / "package").mkdir(parents=True)
    tables.mkdir()
    (tables / "beside.py").write_text(METHOD)
    (tables / "beside_net.py").write_text(NET)
    (here / "package" / "here.py").write_text("SEEN = True")
    (tables / "mine.toml").write_text(TABLE)
    told = run_script(here, "bench", "run", "../tables/mine.toml", "--seeds", "1", "--device", "cpu", *where)
    assert "finished" in told
    assert len(list(here.glob("runs/*/evaluation.jsonl"))) == 1


def test_a_module_that_is_nowhere_is_named_once(tmp_path):
    (tmp_path / "mine.toml").write_text(TABLE.replace("package.here", "packet"))
    (tmp_path / "beside.py").write_text(METHOD)
    (tmp_path / "here").mkdir()
    told = run_script(tmp_path / "here", "bench", "plan", "../mine.toml", code=2)
    assert told.count("\n") == 1
    assert "the table ../mine.toml: there is no module 'packet' in" in told
    assert f"{tmp_path / 'here'} or among the installed packages" in told


def test_train_finds_a_network_in_the_current_folder(tmp_path):
    (tmp_path / "my_net.py").write_text(NET)
    sets = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    words = ("train", "--recipe", "embedded-dr0.9", "--device", "cpu", *sets)
    assert "trained" in run_script(tmp_path, *words, "--set", "model.name=my_net:Net")


def test_folders_are_searched_first_and_once(tmp_path, search):
    before = list(sys.path)
    first, second = tmp_path / "first", tmp_path / "second"
    search_folders([first, second, first])
    search_folders([second, Path(before[-1])])
    assert sys.path == [str(first), str(second), *before]
    for folder in (first, second):
        folder.mkdir()
        (folder / "twin_of_test_imports.py").write_text(f"PLACE = {folder.name!r}")
    assert import_own("twin_of_test_imports", [second, first]).PLACE == "first"  # it was there before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("half_made", "the module 'half_made' cannot be imported: No module named 'not_installed'"),
        ("wrong_name", "the module 'wrong_name' cannot be imported: cannot import name 'nothing'"),
        ("half_made_package.part", "there is no module 'half_made_package.part' in"),
        ("", "'' is no name of a module"),
        (".half_made", "'.half_made' is no name of a module"),
    ],
)
def test_what_cannot_be_imported_is_told(tmp_path, search, name, message):
    (tmp_path / "half_made.py").write_text("import not_installed")
    (tmp_path / "wrong_name.py").write_text("from math import nothing")
    (tmp_path / "half_made_package").mkdir()
    with pytest.raises(UserError, match=message):
        import_own(name, [tmp_path])
