"""What a user gets: one import that needs torch alone, a version, completion, and bounds that agree."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

BLOCK = """
import sys
from importlib.metadata import packages_distributions

TORCHS_OWN = {"torch", "torchgen", "functorch", "filelock", "typing_extensions", "sympy", "isympy", "mpmath"}
TORCHS_OWN |= {"networkx", "jinja2", "markupsafe", "fsspec", "triton", "nvidia", "setuptools", "pkg_resources"}
for name in packages_distributions():
    if name not in TORCHS_OWN | {"stablenet"} and name not in sys.modules:
        sys.modules[name] = None  # an import of it fails
"""


def run(code, **environment):
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=120)


def test_the_weighting_needs_torch_alone():
    use = """
import torch
from stablenet.weighting import DatasetWeighting, StableWeighting, solve_dataset
z, y = torch.randn(16, 4), torch.arange(16) % 2
print(round(float(StableWeighting(seed=0)(z, labels=y).sum()), 3), round(float(solve_dataset(z, y).weights.sum()), 3))
"""
    done = run(BLOCK + use)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["16.0", "16.0"]


def test_the_block_blocks():
    done = run(BLOCK + "import pandas")
    assert "ModuleNotFoundError" in done.stderr


CORE = """
import sys
from importlib.metadata import distribution, packages_distributions
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

waiting, core = [*map(Requirement, NAMES)], set()
while waiting:
    wanted = waiting.pop()
    name = canonicalize_name(wanted.name)
    if name not in core and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
        core.add(name)
        waiting += map(Requirement, distribution(name).requires or ())
kept = core | {"stablenet", "setuptools"}  # torch imports setuptools where it is there
for name, owners in packages_distributions().items():
    if not kept & set(map(canonicalize_name, owners)) and name not in sys.modules:
        sys.modules[name] = None
assert sys.modules.get("ray", 0) is None and sys.modules.get("pandas", 0) == 0
"""
SETUP = """
QUICK = "train.epochs=1", "train.max_steps=2", "data.parameters.test_size=20"
from pathlib import Path
from typer.testing import CliRunner
from stablenet.cli.verbs import app

def call(*words):
    result = CliRunner().invoke(app, [*map(str, words)])
    return f"{type(result.exception).__name__}: {result.exception}" if result.exception else "done"

quick = ["--device", "cpu", *(word for text in QUICK for word in ("--set", text))]
"""
TRY = """
recipe = "--recipe", "embedded-dr0.9"
print(call("train", *recipe, "--method", "stablenet", "--folder", "run", "--logger", "csv", *quick))
print(call("train", *recipe, "--dry-run", *quick))
print(call("evaluate", "run"))
print(call("export", "run", "-o", "exported"))
import numpy, stablenet
from PIL import Image
Image.fromarray(numpy.zeros((30, 30, 3), "uint8")).save("image.png")
print(call("predict", "exported", "image.png"))
print(stablenet.load_model("exported").preprocess("image.png").shape)
print(call("diagnose", "embedded", "--split", "adversarial", "--set", "ratio=0.9", "--limit", "100"))
Path("data.csv").write_text("a,b,c\\n" + "1,2,5\\n2,3,4\\n1,3,5\\n2,2,7\\n" * 10)
print(call("table", "fit", "data.csv", "--target", "a"))
"""
REFUSE = """
cell = '[[column]]\\nid = "a"\\nrecipe = "embedded-dr0.9"\\n', '[[row]]\\nid = "erm"\\nmethod = "erm"\\n'
Path("table.toml").write_text("".join(cell))
print(call("saliency", "run"))
print(call("export", "run", "--format", "onnx"))
print(call("train", *recipe, "--set", "model.name=timm/resnet18", *quick))
print(call("bench", "run", "table.toml", "--ray-address", "local"))
for name in ("tensorboard", "wandb", "mlflow"):
    print(call("train", *recipe, "--logger", name, *quick))
"""
REFUSED = {
    "a saliency map": ("captum", "plots"),
    "ONNX": ("onnx", "onnx"),
    "this backbone": ("timm", "timm"),
    "a run with --ray-address": ("ray", "cluster"),
    "the logger tensorboard": ("tensorboard", "tensorboard"),
    "the logger wandb": ("wandb", "wandb"),
    "the logger mlflow": ("mlflow", "mlflow"),
}
LOOK = """
print(call("train", "--recipe", "embedded-dr0.9", "--folder", "run", *quick))
print(call("saliency", "run", "--count", "1"))
import stablenet.models
print(stablenet.models.build_network("timm/resnet10t", 3).width)
"""


def run_with(names, script, folder):
    """A script in a folder of its own, with these packages and what they need alone."""
    start = f"import os\nos.chdir({str(folder)!r})\nNAMES = {names}\n" + CORE + SETUP
    done = run(start + script, STABLENET_CACHE=str(folder / "cache"), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_package_alone_trains_and_names_the_extra_of_what_it_lacks(tmp_path):
    told = run_with(PROJECT["dependencies"], 'assert sys.modules.get("captum", 0) is None\n' + TRY + REFUSE, tmp_path)
    done, refused = told[:-7], told[-7:]
    assert done == ["done"] * 5 + ["torch.Size([3, 28, 28])"] + ["done"] * 2
    for line, (what, (package, extra)) in zip(refused, REFUSED.items(), strict=True):
        assert line == f"UserError: {what} needs {package}: install it with `pip install 'stablenet[{extra}]'`"


def test_the_extra_for_vision_has_saliency_maps_and_more_backbones(tmp_path):
    names = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["vision"]
    assert run_with(names, LOOK, tmp_path) == ["done", "done", "512"]


def plan_make(folder, *goals):
    """What `make` would run, line by line."""
    done = subprocess.run(["make", "--dry-run", *goals], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_demo_installs_the_package_alone_and_the_tests_the_rest(tmp_path):
    for name in ("Makefile", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    lean = "pip install --quiet --editable ."
    rest = 'pip install --quiet --constraint requirements/ci.txt --editable ".[dev,docs]"'

    def installed(*goals):
        return [line.partition(" -m ")[2] for line in plan_make(tmp_path, *goals) if " -m pip " in line]

    assert installed("demo") == [lean]
    assert installed("test") == [lean, rest]
    made = [line.partition(" ")[2] for line in plan_make(tmp_path, "test") if line.startswith("touch ")]
    (tmp_path / ".venv").mkdir()
    (tmp_path / made[0]).touch()  # as after the demo
    assert installed("demo") == []
    assert installed("test") == [rest]
    (tmp_path / made[1]).touch()  # as after the tests
    assert installed("demo", "test") == []
    os.utime(tmp_path / "pyproject.toml")
    assert installed("demo", "test") == [lean, rest]


HEAVY = {"torch", "numpy", "pandas", "sklearn", "scipy", "pyarrow", "PIL", "torchvision", "matplotlib", "jinja2"}
LIST_IMPORTED = """
import sys
from typer.main import get_command
from typer.testing import CliRunner
from stablenet.cli.verbs import app

def walk(command, words=()):
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, (*words, name))

verbs = list(walk(get_command(app)))
print(len(verbs))
for words in verbs:
    assert CliRunner().invoke(app, [*words, "--help"]).exit_code == 0, words
print(*{name.partition(".")[0] for name in sys.modules})
print(*(name for name in sys.modules if name.startswith("stablenet.") and not name.startswith("stablenet.cli")))
"""


def test_help_imports_neither_torch_nor_anything_else_that_takes_long():
    done = run(LIST_IMPORTED)
    assert done.returncode == 0, done.stderr
    verbs, imported, own = done.stdout.splitlines()
    assert int(verbs) > 20
    assert "typer" in imported.split()
    assert not HEAVY & set(imported.split())
    assert set(own.split()) == {"stablenet._version", "stablenet.errors", "stablenet.registry"}


def stablenet(*arguments, **environment):
    command = [sys.executable, "-m", "stablenet", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=120)


def test_version():
    from stablenet import __version__

    assert stablenet("--version").stdout == f"stablenet {__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_verbs(shell):
    words = {"COMP_WORDS": "stablenet dia", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "stablenet dia"}
    fish = {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    script = "import sys; sys.argv = ['stablenet']; from stablenet.cli.verbs import app; app(prog_name='stablenet')"
    done = run(script, _STABLENET_COMPLETE=f"complete_{shell}", **words, **fish)
    assert "diagnose" in done.stdout
    assert "train" not in done.stdout.replace("training", "").split()


def test_extras_and_bounds_agree():
    extras = PROJECT["optional-dependencies"]
    assert {"cluster", "onnx", "dev", "integrations"} <= extras.keys()
    replaced = {"wandb", "mlflow"}  # by what tests/engine/test_monitor_loggers.py puts in their places
    wanted = {name for extra, names in extras.items() if extra not in {"dev", *replaced} for name in names}
    missing = {name for name in wanted if name not in extras["dev"]} - set(extras.get("docs", ()))
    assert not missing, "the tests need every extra"


def test_the_smoke_test_starts_at_the_oldest_supported_torch():
    bounds = dict(re.fullmatch(r"([a-z0-9-]+)>=(.+)", name).groups() for name in PROJECT["dependencies"])
    script = (ROOT / ".ci" / "smoke").read_text()
    for name in ("torch", "torchvision"):
        assert f'"{name}=={bounds[name]}.*"' in script


def test_the_docker_image_copies_what_the_build_reads():
    copied = (ROOT / "Dockerfile").read_text()
    allowed = (ROOT / ".dockerignore").read_text()
    needed = ["pyproject.toml", "src", PROJECT["readme"], *PROJECT["license-files"]]
    for name in needed:
        assert re.search(rf"^COPY .*\b{re.escape(name)}\b", copied, re.MULTILINE), name
        assert f"!{name}" in allowed.splitlines()
