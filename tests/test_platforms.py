"""The package imports where Unix-only modules are missing, as on Windows."""

import os
import subprocess
import sys

import pytest

import stablenet

IMPORT_ALL = """
import pkgutil, sys
from importlib import import_module
# What others import is theirs: torch and its like choose by platform what they need.
import filelock, lightning_fabric, pandas, pyarrow, scipy.stats, sklearn, torch, torchvision, typer, PIL.Image
for name in ("fcntl", "pwd", "grp", "resource", "termios"):
    sys.modules[name] = None  # an import of it fails
KERNELS = {"data.kernels.programs", "weighting.kernels.programs", "weighting.kernels.solve"}
import stablenet
names = [found.name for found in pkgutil.walk_packages(stablenet.__path__, "stablenet.")]
for name in names:
    # Kernels are written in Triton; __main__ runs the command.
    if name.removeprefix("stablenet.") not in KERNELS | {"__main__"}:
        import_module(name)
print(len(names))
"""
UNIX = ("fcntl", "pwd", "grp", "resource", "termios")


def run(code, **environment):
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=200)


def test_every_module_imports_without_those_of_unix():
    done = run(IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    found = sum(name.endswith(".py") for _, _, names in os.walk(stablenet.__path__[0]) for name in names)
    assert int(done.stdout) == found - 1, "all modules but the package itself"


@pytest.mark.parametrize("name", UNIX)
def test_the_block_blocks(name):
    assert "ModuleNotFoundError" in run(IMPORT_ALL.partition("KERNELS")[0] + f"import {name}").stderr
