"""Sets that do not fit into their budget: the same as in one piece, within it, or one sentence that says the least."""

import math
import re
from dataclasses import replace

import pytest
import torch

from stablenet.errors import UserError
from stablenet.weighting import (
    DatasetOffsets,
    DatasetWeighting,
    WholeSet,
    WholeSetPlan,
    dataset,
    logistic,
    offsets,
    solve_dataset,
    solve_offsets,
    streamed,
)
from stablenet.weighting.chunks import ExactSum, Rows, column_moments, read_size, show_size
from stablenet.weighting.dataset import dataset_settings
from stablenet.weighting.fourier import apply_fourier_functions, standardize
from stablenet.weighting.problem import draw_functions, unit_functions, unit_labels
from stablenet.weighting.statistic import DirectLabelPairs
from stablenet.weighting.streamed import StreamedLabelPairs
from tests.weighting.test_dataset import contexts

AMPLE = "2GiB"


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of 128 rows in blocks of a few, for every set."""
    for module in (dataset, offsets):
        monkeypatch.setattr(module, "CHUNK_ROWS", 128)
    monkeypatch.setattr(streamed, "BLOCK_NUMBERS", {"cpu": 50 * 100, "cuda": 50 * 100})
    monkeypatch.setattr(logistic, "LOGITS_AT_ONCE", {"cpu": 50 * 20, "cuda": 50 * 20})
    monkeypatch.setattr(dataset, "whole_need", lambda *sizes: 2**50)
    monkeypatch.setattr(offsets, "whole_need", lambda *sizes: 2**50)


def by_definition(z, labels, settings, functions):
    """The statistic in one piece, in float64 throughout."""
    z = z.double()
    z = standardize(z) if settings.scaling == "standard" else z
    u = z[..., None] if functions is None else apply_fourier_functions(z, functions, settings.bandwidth)
    u = u * z.any(0)[:, None]
    if settings.objective == "share":
        return DirectLabelPairs(unit_functions(u), unit_labels(labels, torch.float64), settings.form)
    columns = labels.double() if labels.ndim == 2 else torch.nn.functional.one_hot(labels).double()
    return DirectLabelPairs(u, columns, settings.form)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"num_functions": 0},
        {"objective": "relative", "chance": 0.0, "bandwidth": 2.0},
        {"preset": "paper", "pairs": "labels"},
        {"preset": "paper", "pairs": "labels", "form": "covariance", "num_functions": 0},
    ],
)
def test_the_streamed_statistic_is_the_whole_one_in_float64(chosen, columns):
    z, labels, _ = contexts()
    z[:, 3] = 7.0  # a constant column
    labels = torch.stack([labels.float(), labels.float() ** 2], 1) if columns else labels
    settings = dataset_settings(chosen.get("preset", "recommended"), {k: v for k, v in chosen.items() if k != "preset"})
    settings = replace(settings, tolerance=1e-4)  # asks for float64
    functions = None
    if settings.num_functions:
        drawn = draw_functions(20, settings, torch.Generator().manual_seed(5))
        functions = replace(drawn, omega=drawn.omega.double(), phase=drawn.phase.double())
    statistic = StreamedLabelPairs(
        Rows(z).divided(128), labels, settings, torch.Generator().manual_seed(5), read_size(AMPLE)
    )
    w = torch.rand(600, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2
    value, slope = statistic.value_and_gradient(w)
    expected, expected_slope = by_definition(z, labels, settings, functions).value_and_gradient(w)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(slope, expected_slope, rtol=0, atol=1e-9 * float(expected_slope.abs().max()))


def test_weights_found_chunk_by_chunk_are_those_found_in_one_piece(small_chunks, monkeypatch):
    z, labels, _ = contexts()
    parts = solve_dataset(z, labels, memory=AMPLE)
    monkeypatch.undo()
    whole = solve_dataset(z, labels)
    assert len(parts.objective) == len(whole.objective)
    torch.testing.assert_close(parts.weights, whole.weights, atol=5e-3, rtol=1e-3)
    torch.testing.assert_close(parts.dependence, whole.dependence, atol=1e-6, rtol=1e-3)


def test_what_is_kept_between_passes_changes_no_bit(small_chunks):
    z, labels, _ = contexts()
    _, ample = solve_dataset(z, labels, memory=AMPLE), solve_dataset(z, labels, memory=AMPLE)
    least = streamed.streamed_need(600, 20, 4, dataset_settings("recommended", {}), torch.device("cpu"))
    tight = solve_dataset(z, labels, memory=show_size(least + 2**12))
    assert torch.equal(ample.weights, tight.weights)
    with pytest.raises(UserError, match=r"weights of 600 samples needs at least .*: set memory to '.*' or more"):
        solve_dataset(z, labels, memory="1KiB")


@pytest.mark.parametrize(("strength", "offset"), [(1.0, 0.5), (0.0, 1.0), (1.0, 0.0)])
@pytest.mark.parametrize("components", [0, 3])
def test_a_budget_too_small_is_refused_with_the_first_batch_and_what_it_names_is_enough(
    strength, offset, components, small_chunks
):
    z, labels, _ = contexts()

    def begin(memory):
        plan = WholeSetPlan(strength=strength, offset=offset, components=components)
        whole_set = WholeSet(plan, 600, 4, preset="recommended", fold_seed=0, overrides={}, memory=memory)
        for part in torch.arange(600).split(50):
            whole_set.collect(part, {"first": z[part, :8], "second": z[part, 8:]}, labels[part])
        return whole_set

    with pytest.raises(UserError, match="solving for 600 samples needs at least") as refused:
        begin("1KiB")
    named = re.search("set memory to '(.*)' or more", str(refused.value))[1]
    found = begin(named).solve()
    assert found["ess_ratio"] < 1 or not strength
    with pytest.raises(UserError, match="solving for 600 samples needs at least"):
        begin(show_size(read_size(named) - 2**14))


@pytest.mark.parametrize("components", [0, 3])
def test_offsets_found_chunk_by_chunk_are_those_found_in_one_piece(components, small_chunks, monkeypatch):
    z, labels, _ = contexts()
    parts = solve_offsets(z, labels, 5, components=components, memory=AMPLE)
    values = parts.values
    monkeypatch.undo()
    whole = solve_offsets(z, labels, 5, components=components)
    assert parts.ridge == whole.ridge
    assert 0.1 < whole.explained == pytest.approx(parts.explained, abs=1e-4)
    torch.testing.assert_close(values, whole.values, atol=0.02, rtol=0.01)


def test_the_store_streams_what_was_collected(small_chunks, monkeypatch):
    z, labels, _ = contexts()
    seen = torch.randperm(600, generator=torch.Generator().manual_seed(2))[:500].sort().values
    store = DatasetWeighting(600, storage=torch.float32, memory=AMPLE)
    store.collect(seen, z[seen], labels[seen])
    found = store.solve()
    monkeypatch.undo()
    torch.testing.assert_close(found.weights, solve_dataset(z[seen], labels[seen]).weights, atol=5e-3, rtol=1e-3)
    assert torch.equal(store(seen), found.weights)


@pytest.mark.parametrize(("components", "kept"), [(3, "predicted"), (0, "half")])
def test_many_offsets_are_computed_when_looked_up_or_kept_in_half_precision(components, kept):
    z, labels, _ = contexts()
    few, many = (
        DatasetOffsets(700, 4, components=components, strength=0.5, memory=memory) for memory in (None, "40KiB")
    )
    many.memory = None  # the budget of the solve itself is another matter
    for store in (few, many):
        store.collect(torch.arange(600), z, labels)
        store.solve()
        store.weaken()
    assert (many.predicted is not None) == (kept == "predicted")
    every = torch.arange(700)
    torch.testing.assert_close(many(every), few(every), atol=5e-3 if kept == "half" else 1e-6, rtol=0)
    assert few(every).abs().max() > 0.1
    own = torch.cat([labels, torch.zeros(100, dtype=torch.int64)])
    torch.testing.assert_close(many.describe(), few(every).gather(1, own[:, None])[:, 0], atol=5e-3, rtol=0)
    assert few.act
    assert many.act
    other = DatasetOffsets(700, 4, components=components, strength=0.5, memory="40KiB")
    assert not other.act
    other.load_state_dict(many.state_dict())
    assert torch.equal(other(every), many(every))
    assert not many.eval()(every).any()


@pytest.mark.parametrize("other", [{"num_samples": 600}, {"num_classes": 5}, {"memory": None}, {"components": 2}])
def test_a_state_of_other_offsets_is_refused(other):
    given = {"num_samples": 700, "num_classes": 4, "components": 3, "memory": "40KiB"}
    state = DatasetOffsets(**given).state_dict()
    DatasetOffsets(**given).load_state_dict(state)
    with pytest.raises(UserError, match=r"the saved state does not fit: .* is .* there, but .* here; give num_samples"):
        DatasetOffsets(**{**given, **other}).load_state_dict(state)


def test_sums_of_chunks_do_not_depend_on_their_order():
    parts = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 0, 50)[:, None]
    rows, bound = Rows(torch.zeros(100, 1)).divided(2), 100.0
    found = []
    for order in (range(50), reversed(range(50))):
        total = ExactSum((7,), torch.float32, rows, bound)
        for number in order:
            total.add(parts[number])
        found.append(total.result())
    assert torch.equal(*found)
    torch.testing.assert_close(found[0], parts.double().sum(0).float(), rtol=1e-6, atol=1e-12)
    assert not torch.equal(sum(parts), sum(parts.flip(0)))


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 200.0])
def test_a_sum_with_a_bad_part_is_not_a_number(wrong):
    total = ExactSum((3,), torch.float32, Rows(torch.zeros(100, 1)).divided(2), 100.0)
    total.add(torch.tensor([1.0, wrong, 2.0]))
    assert total.result().isnan().all()


def test_moments_of_chunks_are_those_of_the_whole():
    z = torch.randn(1000, 5, generator=torch.Generator().manual_seed(0)) * 3 + 1000
    rows = Rows(z).divided(300)
    found = column_moments(rows, (parts for _, parts in rows.blocks(7)), 5)
    torch.testing.assert_close(found.mean, z.double().mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(found.spread, z.double().std(0, correction=0), rtol=1e-9, atol=0)
    assert torch.equal(found.peak, z.double().abs().amax(0))


def test_amounts_of_memory():
    assert [read_size(text) for text in ("1KiB", "1.5GiB", " 2 TiB ")] == [2**10, 3 * 2**29, 2**41]
    for size in (1, 999, 2**20 - 1, 12345678, 2**30 + 1, 2**43):
        assert read_size(show_size(size)) >= size
    for wrong in ("4", "4GB", "0GiB", "-1GiB", "GiB"):
        with pytest.raises(UserError, match=r"memory must be an amount of memory such as '4GiB'"):
            DatasetWeighting(4, memory=wrong)


def test_settings_that_need_all_samples_at_once_say_so():
    z, labels, _ = contexts()
    with pytest.raises(UserError, match="which need all samples at once, a solve needs at least"):
        solve_dataset(z, labels, bandwidth="median", memory="1KiB")
