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
    script = "import sys; sys.argv = ['stablenet']; from stablenet.cli.main import app; app(prog_name='stablenet')"
    done = run(script, _STABLENET_COMPLETE=f"complete_{shell}", **words, **fish)
    assert "diagnose" in done.stdout
    assert "train" not in done.stdout.replace("training", "").split()


def test_extras_and_bounds_agree():
    extras = PROJECT["optional-dependencies"]
    assert {"cluster", "onnx", "dev", "integrations"} <= extras.keys()
    wanted = {name for extra, names in extras.items() if extra != "dev" for name in names}
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
