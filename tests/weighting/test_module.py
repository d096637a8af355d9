"""StableWeighting: what enters a solve, a training loop, saved state, several layers, precisions, bad input."""

import copy
import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from stablenet import StableWeighting
from stablenet.errors import UserError
from stablenet.weighting import PRESETS, effective_sample_size
from stablenet.weighting.inputs import ALL_GOOD, BAD_LABEL, Layers, PendingCheck
from stablenet.weighting.memory import WeightedRows, make_memory
from stablenet.weighting.module import join_memory, judge_values, label_rows, memory_measure
from stablenet.weighting.settings import settings_of


def test_weights_become_logits_of_the_same_proportions():
    settings = settings_of("published", {"memory_holds": "weights"})
    weights = torch.tensor([0.5, 1.0, 1.5, 0.0])
    shares = torch.softmax(memory_measure(weights, settings), 0)
    torch.testing.assert_close(shares, weights / weights.sum())


def test_logits_become_weights_that_sum_to_each_groups_size():
    settings = settings_of("published", {"logits": "block", "groups": 2})
    logits = torch.tensor([0.0, 1.0, 2.0, 5.0])
    weights = memory_measure(logits, settings).view(2, 2)
    torch.testing.assert_close(weights.sum(1), torch.tensor([2.0, 2.0]))
    torch.testing.assert_close((weights[:, 1] / weights[:, 0]).log(), torch.tensor([1.0, 3.0]))


def test_what_is_held_as_it_is_wanted_stays():
    held = torch.tensor([0.5, 1.5])
    assert memory_measure(held, settings_of("recommended", {})) is held
    assert memory_measure(held, settings_of("published", {})) is held


def test_the_memory_stands_before_the_batch():
    settings = settings_of("recommended", {})
    past = WeightedRows(torch.zeros(2, 3), torch.tensor([0.5, 1.5]), torch.tensor([7, 8]))
    batch = torch.ones(1, 3), torch.tensor([9])
    rows, fixed, labels = join_memory(past, *batch, settings)
    assert rows[:, 0].tolist() == [0, 0, 1]
    assert fixed.tolist() == [0.5, 1.5]
    assert labels.tolist() == [7, 8, 9]
    rows, fixed, labels = join_memory(None, *batch, settings)
    assert (len(rows), len(fixed), labels.tolist()) == (1, 0, [9])


@pytest.mark.parametrize(
    ("spoilt", "labels", "width", "verdict"),
    [
        (None, [0, 1], None, ALL_GOOD),
        (None, [0, 1], 2, ALL_GOOD),
        (None, [0, 5], 2, BAD_LABEL),
        ((1, 2), [0, 5], 2, 2),  # the values come first
        ((0, 0), [0, 1], 2, 0),
    ],
)
def test_values_are_judged_and_cleaned(spoilt, labels, width, verdict):
    z = torch.arange(6.0).view(2, 3)
    if spoilt:
        z[spoilt] = float("inf")
    clean, _, found = judge_values(z, torch.tensor(labels), width)
    assert found.item() == verdict
    assert torch.isfinite(clean).all()
    assert torch.equal(clean[torch.isfinite(z)], z[torch.isfinite(z)])


def test_labels_turn_into_columns_only_where_they_are_averaged():
    labels = torch.tensor([2, 0])
    assert label_rows(labels, None) is labels
    assert label_rows(labels, 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert label_rows(torch.tensor([[0.5, 0.5]], dtype=torch.float64), None).dtype == torch.float32


def test_a_bad_verdict_that_was_noted_is_raised_when_a_batch_is_not_replayed():
    memory, layers = make_memory(settings_of("paper", {})), Layers(("early", "late"), (1, 3))
    pending, good = PendingCheck(), torch.tensor(ALL_GOOD)
    pending.watch(good, layers, first=False)
    for verdict in (good, torch.tensor(3), torch.tensor(0)):
        pending.note(verdict)
    pending.raise_if_bad(memory)  # a recording that was made and never played noted nothing
    pending.watch(good, layers, first=False)
    pending.count_replay()
    with pytest.raises(UserError, match="in an earlier batch, column 2 of late holds NaN or inf"):
        pending.raise_if_bad(memory)
    pending.watch(good, layers, first=False)
    pending.count_replay()
    pending.raise_if_bad(memory)


ALL = tuple(PRESETS)


def data(seed=0, n=32, m=6):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1, generator=g)
    return x + 0.5 * torch.randn(n, m, generator=g), (x[:, 0] > 0).long()


@pytest.mark.parametrize("preset", ALL)
def test_three_lines_of_a_training_loop(preset):
    torch.manual_seed(0)
    backbone, head = nn.Linear(5, 6), nn.Linear(6, 2)
    weighting = StableWeighting(preset=preset, seed=0)
    for step in range(3):
        x, y = torch.randn(32, 5), torch.randint(0, 2, (32,))
        z = backbone(x)
        loss = F.cross_entropy(head(z), y, reduction="none")
        w = weighting(z, labels=y)
        (w * loss).mean().backward()
        assert w.shape == (32,)
        assert w.dtype == torch.float32
        assert not w.requires_grad
        assert w.min() >= 0
        assert w.sum().item() == pytest.approx(32, rel=1e-5)
        assert weighting.diagnostics["steps"] == 20, step
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in backbone.parameters())


@pytest.mark.parametrize("preset", ["paper", "recommended"])
def test_dependence_falls_and_is_reported(preset):
    weighting = StableWeighting(preset=preset)
    for seed in range(4):
        z, y = data(seed)
        w = weighting(z, labels=y)
    told = weighting.diagnostics
    assert told["dependence_after"] < told["dependence_before"]
    assert told["ess_ratio"] == pytest.approx(effective_sample_size(w).item() / 32)
    assert told["path"] == "eager"
    assert 0 < told["kept_step"] <= 20
    assert told["guard_events"] == {"ess": told["guard_events"]["ess"], "uniform": False}


def test_weights_do_not_touch_the_features_gradient_or_the_global_random_state():
    z, y = data()
    z.requires_grad_()
    state = torch.get_rng_state()
    w = StableWeighting("recommended")(z, labels=y)
    assert torch.equal(torch.get_rng_state(), state)
    (w * z.sum(1)).sum().backward()
    torch.testing.assert_close(z.grad, w[:, None].expand_as(z))


def test_uniform_weights_are_plain_training_bit_for_bit():
    z = torch.full((10, 3), 1.5)
    w = StableWeighting("recommended")(z, labels=torch.zeros(10, dtype=torch.long))
    assert torch.equal(w, torch.ones(10))


def test_eval_gives_ones_and_leaves_the_memory_alone():
    z, _ = data()
    weighting = StableWeighting("paper")
    weighting(z)
    before = copy.deepcopy(weighting.state_dict())
    weighting.eval()
    assert torch.equal(weighting(data(1)[0]), torch.ones(32))
    after = weighting.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("preset", ALL)
def test_saved_state_continues_bit_for_bit(preset):
    one = StableWeighting(preset, groups=2, seed=4)
    for seed in range(3):
        z, y = data(seed)
        one(z, labels=y)
    other = StableWeighting(preset, groups=2, seed=4)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for seed in range(3, 6):
        z, y = data(seed)
        assert torch.equal(one(z, labels=y), other(z, labels=y))


def test_one_seed_one_result_and_another_seed_another():
    z, y = data()
    runs = [StableWeighting("recommended", seed=seed)(z, labels=y) for seed in (0, 0, 1)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_memory_changes_what_is_learned():
    z, y = data()
    with_memory, without = StableWeighting("recommended"), StableWeighting("recommended", groups=0)
    for seed in (5, 6):
        old, old_y = data(seed)
        with_memory(old, labels=old_y)
        without(old, labels=old_y)
    assert not torch.allclose(with_memory(z, labels=y), without(z, labels=y), atol=1e-3)


def test_several_layers_stand_side_by_side():
    z, y = data()
    joined = StableWeighting("recommended")(z, labels=y)
    layers = StableWeighting("recommended")({"early": z[:, :2], "late": z[:, 2:]}, labels=y)
    assert torch.equal(joined, layers)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions_are_taken_and_float32_comes_back(dtype):
    z, y = data()
    w = StableWeighting("recommended")(z.to(dtype), labels=y)
    reference = StableWeighting("recommended")(z.to(dtype).float(), labels=y)
    assert w.dtype == torch.float32
    assert torch.equal(w, reference)


def test_autocast_does_not_reach_the_solve():
    z, y = data()
    plain = StableWeighting("recommended")(z, labels=y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = StableWeighting("recommended")(z, labels=y)
    assert torch.equal(plain, cast)


def test_inside_torch_compile():
    weighting = StableWeighting("recommended")
    z, y = data()
    expected = StableWeighting("recommended")(z, labels=y)

    @torch.compile(backend="eager")
    def step(z, y):
        return (weighting(z, labels=y) * z.sum(1)).mean()

    assert step(z, y).item() == pytest.approx((expected * z.sum(1)).mean().item(), rel=1e-6)


def test_the_compiler_is_not_imported_until_there_are_weights_to_keep_out_of_it():
    script = """
import sys, stablenet.tabular
from stablenet import StableWeighting
print("torch._dynamo" in sys.modules)
plain = StableWeighting.forward
StableWeighting()
print(StableWeighting.forward is plain)
"""
    told = subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert told.split() == ["False", "False"]


def test_gradient_accumulation_is_two_calls():
    weighting = StableWeighting("recommended")
    z, y = data()
    total = torch.cat([weighting(z[:16], labels=y[:16]), weighting(z[16:], labels=y[16:])])
    assert total.sum().item() == pytest.approx(32, rel=1e-5)
    weighting(z[:7], labels=y[:7])  # a short last batch


def test_warmup_returns_ones_then_starts():
    z, y = data()
    weighting = StableWeighting("recommended", warmup=2)
    assert torch.equal(weighting(z, labels=y), torch.ones(32))
    assert torch.equal(weighting(z, labels=y), torch.ones(32))
    assert not torch.equal(weighting(z, labels=y), torch.ones(32))
    published = StableWeighting("published", warmup=1)
    assert torch.equal(published(z), torch.full((32,), 32.0))


def test_regression_targets_are_label_columns():
    z, _ = data()
    w = StableWeighting("recommended")(z, labels=z[:, :1] ** 2)
    assert not torch.equal(w, torch.ones(32))


def test_averaged_labels_need_room_for_all_classes():
    z, _ = data(n=8)
    low, high = torch.tensor([0, 1] * 4), torch.tensor([0, 2] * 4)
    weighting = StableWeighting("paper", pairs="both")
    weighting(z, labels=low)
    with pytest.raises(UserError, match=r"label 2 was found.*2 classes.*num_classes=3"):
        weighting(z, labels=high)
    roomy = StableWeighting("paper", pairs="both", num_classes=3)
    roomy(z, labels=low)
    roomy(z, labels=high)
    assert roomy.memory.labels.shape == (1, 8, 3)


BAD_CALLS = {
    "must have shape \\(batch, width\\), got \\(4, 3, 2\\)": lambda w, z, y: w(torch.zeros(4, 3, 2), labels=y),
    "floating-point, got torch.int64": lambda w, z, y: w(torch.zeros(32, 3, dtype=torch.long), labels=y),
    "features is empty": lambda w, z, y: w(torch.zeros(0, 6), labels=y[:0]),
    "must be a tensor": lambda w, z, y: w([[1.0]], labels=y),
    "empty dict": lambda w, z, y: w({}, labels=y),
    "same number of samples": lambda w, z, y: w({"a": z, "b": z[:5]}, labels=y),
    "one row per sample, 32 of them, got shape \\(31,\\)": lambda w, z, y: w(z, labels=y[1:]),
    "labels are needed": lambda w, z, y: w(z),
    "must be integer classes": lambda w, z, y: w(z, labels=y.float()),
    "larger than the memory": lambda w, z, y: w(torch.cat([z, z]), labels=torch.cat([y, y])),
    "column 2 of late holds NaN or inf": lambda w, z, y: w({"early": z[:, :1], "late": spoil(z[:, 1:], 2)}, labels=y),
}


def spoil(z, column, value=float("nan")):
    z = z.clone()
    z[3, column] = value
    return z


@pytest.mark.parametrize("message", BAD_CALLS)
def test_bad_input_is_one_clear_sentence_and_changes_nothing(message):
    z, y = data()
    weighting = StableWeighting("recommended")
    weighting(z, labels=y)
    before = copy.deepcopy(weighting.state_dict())
    with pytest.raises(UserError, match=message):
        BAD_CALLS[message](weighting, z, y)
    after = weighting.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert torch.isfinite(weighting(z, labels=y)).all()


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_non_finite_values_are_named_before_the_first_batch_too(value):
    weighting = StableWeighting("paper")
    with pytest.raises(UserError, match="column 4 of features"):
        weighting(spoil(data()[0], 4, value))
    assert weighting.memory.recall() is None


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(1, 12),
    m=st.integers(1, 5),
    scale=st.sampled_from([1e-35, 1e-6, 1.0, 1e6, 1e30]),
    kind=st.sampled_from(["normal", "constant", "duplicated", "sparse"]),
    preset=st.sampled_from(ALL),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    q=st.sampled_from([None, 0, 0.3, 2]),
    seed=st.integers(0, 1000),
)
def test_constraints_hold_for_whatever_comes(n, m, scale, kind, preset, dtype, q, seed):
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, m, generator=g) * scale
    if kind == "constant":
        z[:, 0] = scale
    elif kind == "duplicated":
        z = z[:1].expand(n, m).contiguous()
    elif kind == "sparse":
        z = z * (torch.rand(n, m, generator=g) < 0.2)
    y = torch.randint(0, 3, (n,), generator=g)
    overrides = {} if q is None or preset == "published" else {"num_functions": q}
    weighting = StableWeighting(preset, steps=6, **overrides)
    for _ in range(2):
        w = weighting(z.to(dtype), labels=y)
        assert torch.isfinite(w).all()
        assert w.min() >= 0
        assert w.sum().item() == pytest.approx(n, rel=1e-4)
        assert effective_sample_size(w) >= weighting.settings.min_ess * n - 1e-3
