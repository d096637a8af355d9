"""On a GPU: the fused path equals the eager one, repeats to the bit, never synchronises, reports bad values late."""

import copy

import pytest
import torch

from stablenet.errors import UserError
from stablenet.weighting import StableWeighting
from stablenet.weighting.kernels.fused_solve import launch_solve
from stablenet.weighting.problem import solve_problem
from stablenet.weighting.settings import settings_of
from tests.weighting.kernel_cases import CASES, make_problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
SIZES = [(256, 512, 128), (100, 37, 60), (24, 6, 14), (1024, 64, 256)]


def generator():
    return torch.Generator("cuda").manual_seed(3)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_fused_equals_eager(case, size):
    n, m, batch = size
    rows, labels, fixed = make_problem(n, m, batch, "cuda")
    preset, overrides = CASES[case]
    settings = settings_of(preset, overrides)
    found = launch_solve(rows, labels, fixed, batch, settings, generator())
    expected = solve_problem(rows, labels, fixed, batch, settings, generator())
    again = launch_solve(rows, labels, fixed, batch, settings, generator())
    difference = (found.weights - expected.weights).abs().max() / expected.weights.max()
    print(f"{case:26} n={n:5} m={m:4} largest difference {difference:.1e}, largest weight {expected.weights.max():.2f}")
    torch.testing.assert_close(found.objective, expected.objective, atol=1e-6, rtol=1e-5, check_dtype=False)
    assert difference < 1e-5
    assert torch.equal(found.weights, again.weights)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("preset", ["paper", "published", "recommended"])
def test_a_training_step_does_not_synchronise(preset):
    weighting = StableWeighting(preset, num_classes=2).cuda()
    rows, labels, _ = make_problem(64, 32, 64, "cuda")
    for _ in range(13):  # `published` begins with ten batches that differ
        weighting(rows, labels=labels)
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(5):
            weights = weighting(rows, labels=labels)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert weighting.diagnostics["path"] == "graph"
    assert weights.sum().item() == pytest.approx(64, rel=1e-5)


@pytest.mark.parametrize("preset", ["paper", "recommended"])
@pytest.mark.parametrize("first", [True, False])
def test_bad_values_give_ones_leave_the_memory_alone_and_are_raised_at_the_next_call(preset, first):
    weighting = StableWeighting(preset).cuda()
    rows, labels, _ = make_problem(64, 32, 64, "cuda")
    if not first:
        weighting(rows, labels=labels)
    before = copy.deepcopy(weighting.memory.state_dict())
    spoiled = rows.clone()
    spoiled[5, 7] = float("inf")
    assert torch.equal(weighting(spoiled, labels=labels), torch.ones(64, device="cuda"))
    with pytest.raises(UserError, match="previous batch, column 7 of features holds NaN or inf"):
        weighting(rows, labels=labels)
    if first:
        assert weighting.memory.recall() is None
    else:
        after = weighting.memory.recall()
        assert torch.equal(after.features.flatten(), before["features"].flatten())
    assert torch.isfinite(weighting(rows, labels=labels)).all()


@pytest.mark.parametrize(
    "overrides", [{"preset": "paper"}, {"preset": "published"}, {"preset": "recommended", "groups": 3}], ids=str
)
def test_graph_equals_launch_by_launch_to_the_bit(overrides):
    """Over batches of two sizes, a saved and restored state and a reset: what changes buffers and positions."""
    one, other = (StableWeighting(**overrides, graphs=graphs, memory_rows=64).cuda() for graphs in (True, False))
    paths = set()
    for round in range(3):
        for call in range(8):
            rows, labels, _ = make_problem(40 if call == 5 else 64, 32, 40, "cuda", seed=call)
            assert torch.equal(one(rows, labels=labels), other(rows, labels=labels))
            paths.add(one.diagnostics["path"])
        if round == 0:
            restored = StableWeighting(**overrides, memory_rows=64).cuda()
            restored.load_state_dict(copy.deepcopy(one.state_dict()))
            one = restored
        else:
            one.reset()
            other.reset()
    by_launches = "eager" if overrides["preset"] == "published" else "fused"
    assert paths == {by_launches, "graph"}
    assert other.diagnostics["path"] == by_launches
    copy.deepcopy(one)


def test_gpu_and_cpu_agree_given_the_same_functions():
    """Linear features need no random functions, so the two devices see one problem."""
    rows, labels, _ = make_problem(64, 32, 64)
    here = StableWeighting("recommended", num_functions=0)
    there = StableWeighting("recommended", num_functions=0).cuda()
    for _ in range(3):
        ours, theirs = here(rows, labels=labels), there(rows.cuda(), labels=labels.cuda()).cpu()
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_the_solve_stays_in_float32(dtype):
    rows, labels, _ = make_problem(64, 32, 64, "cuda")
    plain = StableWeighting("recommended").cuda()(rows.to(dtype), labels=labels)
    with torch.autocast("cuda", dtype=dtype):
        cast = StableWeighting("recommended").cuda()(rows.to(dtype), labels=labels)
    assert torch.equal(plain, cast)


def test_extra_memory_stays_small():
    weighting = StableWeighting("paper", num_functions=5).cuda()
    z = torch.randn(128, 2048, device="cuda")
    start = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(4):  # the recording of the graph included
        weighting(z)
    assert (torch.cuda.max_memory_allocated() - start) / 2**20 <= 64


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler
def test_inside_a_compiled_training_step():
    weighting = StableWeighting("recommended").cuda()
    rows, labels, _ = make_problem(64, 32, 64, "cuda")

    @torch.compile
    def step(z, y):
        return (weighting(z, labels=y) * z.sum(1)).mean()

    expected = (StableWeighting("recommended").cuda()(rows, labels=labels) * rows.sum(1)).mean()
    torch.testing.assert_close(step(rows, labels), expected, rtol=1e-4, atol=1e-5)
