import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from stablenet.algorithms import ALGORITHMS
from stablenet.bench.paper_tables import PaperTable, find_table
from tests.bench.small import make_runs, write_table


class Bench(NamedTuple):
    """A table, its file, and a folder of its runs: erm and stablenet, seeds 0 and 1."""

    table: PaperTable
    file: str
    runs: Path


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Bench:
    """Not to be changed: `bench` gives copies."""
    folder = tmp_path_factory.mktemp("bench")
    file = write_table(folder)
    make_runs(file, folder / "runs")
    return Bench(find_table(file), file, folder / "runs")


@pytest.fixture
def bench(made, tmp_path) -> Bench:
    runs = shutil.copytree(made.runs, tmp_path / "runs")
    return Bench(made.table, made.file, runs)


@pytest.fixture
def own_methods(monkeypatch):
    """Methods registered in the test are forgotten after it: other tests go through all methods of the package."""
    before = set(sys.modules)
    monkeypatch.setattr(ALGORITHMS, "_parts", dict(ALGORITHMS._parts))
    yield
    for name in [name for name in sys.modules if name.startswith("benchmarks.") and name not in before]:
        del sys.modules[name]
