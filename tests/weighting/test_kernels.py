"""The fused programs in Triton's interpreter, which needs no GPU, against the eager path.

The interpreter runs one program after another, so the barrier between programs is tested on a GPU only
(test_kernels_gpu.py); here one program owns everything. Triton reads its switch when the programs are imported, hence
the process of their own.
"""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from stablenet.weighting import StableWeighting
from stablenet.weighting.kernels import MOST_ROWS, may_record, why_not_fused
from stablenet.weighting.kernels.fused_solve import plan_grid
from stablenet.weighting.settings import settings_of

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton comes with torch on Linux")

SCRIPT = """
import dataclasses
import torch
from stablenet.weighting.kernels import fused_solve
from stablenet.weighting.settings import settings_of
from stablenet.weighting.problem import solve_problem
from tests.weighting.kernel_cases import CASES, make_problem

plan = fused_solve.plan_grid

def plan_one(n, m, q):
    return dataclasses.replace(plan(n, m, q), programs=1, features=m, rows=fused_solve.power_of_two(n))

fused_solve.plan_grid = plan_one
rows, labels, fixed = make_problem(20, 6, 12)
for name, (preset, overrides) in CASES.items():
    settings = settings_of(preset, {"steps": 6, **overrides})
    found, expected = (
        solve(rows, labels, fixed, 12, settings, torch.Generator().manual_seed(3))
        for solve in (fused_solve.launch_solve, solve_problem)
    )
    for field in ("weights", "objective", "dependence", "gap", "kept", "guarded"):
        a, b = (getattr(each, field).double() for each in (found, expected))
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4, msg=lambda m: f"{name}, {field}: {m}")
    assert (expected.weights - 1).abs().max() > 1e-3, f"{name}: nothing was learned, nothing compared"
    print("agrees:", name)
"""


@needs_triton
def test_interpreted_programs_equal_the_eager_path():
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("agrees:") == 12


@needs_triton
@pytest.mark.parametrize(("n", "m", "q"), [(1, 1, 1), (256, 512, 1), (256, 2048, 5), (100, 37, 3), (2048, 64, 5)])
def test_the_grid_covers_all_features_and_rows(n, m, q):
    grid = plan_grid(n, m, q)
    assert grid.programs & (grid.programs - 1) == 0
    assert grid.programs * grid.features >= m
    assert grid.programs * grid.rows >= n
    assert grid.block_n >= n
    assert grid.programs <= 64


@pytest.mark.parametrize(
    "overrides", [{"redraw": "step"}, {"pairing": "same", "pairs": "both"}, {"tolerance": 0.1}, {"bandwidth": "median"}]
)
def test_what_has_no_fused_kernel_says_so(overrides):
    assert "has no fused kernel" in why_not_fused(4, torch.device("cuda"), settings_of("recommended", overrides))


def test_too_many_rows_go_the_eager_way():
    reason = why_not_fused(5000, torch.device("cuda"), settings_of("recommended", {}))
    assert "at most 2048" in reason


@pytest.mark.parametrize(
    ("preset", "overrides", "path", "rows", "device", "possible"),
    [
        ("paper", {}, "fused", 256, "cuda", True),
        ("paper", {"graphs": False}, "fused", 256, "cuda", False),
        ("published", {}, "eager", 256, "cuda", True),
        ("published", {}, "eager", MOST_ROWS + 1, "cuda", False),
        ("published", {}, "eager", 256, "cpu", False),
        ("published", {"bandwidth": "median"}, "eager", 256, "cuda", False),
        ("recommended", {}, "eager", 256, "cuda", False),  # labels
        ("paper", {"tolerance": 0.01}, "eager", 256, "cuda", False),
    ],
)
def test_what_may_be_recorded(preset, overrides, path, rows, device, possible):
    assert may_record(path, rows, torch.device(device), settings_of(preset, overrides)) is possible


def test_a_reset_makes_room_for_new_graphs(monkeypatch):
    """`published` begins with ten memories that never come back; after a reset, or a loaded state, ten others."""
    recorded = []

    class Graph:
        def __init__(self, step):
            self._step = step

        def replay(self, z, labels, seed):
            return self._step(z, labels, torch.Generator().manual_seed(seed))

    def record_step(step, z, labels):
        recorded.append(step)
        return Graph(step)

    monkeypatch.setattr("stablenet.weighting.kernels.record_step", record_step)
    monkeypatch.setattr("stablenet.weighting.module.may_record", lambda *about: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    weighting = StableWeighting("published")
    for life in range(1, 4):
        for call in range(14):
            z = torch.randn(8, 3, generator=torch.Generator().manual_seed(call))
            weighting(z)
        assert len(recorded) == life
        assert weighting.diagnostics["path"] == "graph"
        weighting.reset()
