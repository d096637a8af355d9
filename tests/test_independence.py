"""The test of independence beside HSIC by definition, exhaustive permutation, and its own promises."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from stablenet.errors import UserError
from stablenet.independence import features as features_module
from stablenet.independence import independence_test, null, pairwise_independence_test, plot_dependence
from stablenet.independence.adjustment import adjust_benjamini_hochberg, adjust_holm
from stablenet.independence.features import build_features, median_distance, squared_norms
from stablenet.weighting.fourier import draw_fourier_functions
from tests.reference.hsic import biased_hsic, slow_statistic, standardise

ASYMPTOTIC = {"method": "asymptotic"}
DEPENDENCES = {
    "linear": lambda x, e: 0.6 * x + 0.8 * e,
    "square": lambda x, e: x.square() + e,
    "spread": lambda x, e: (0.3 + x.abs()) * e,
}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


# The statistic


@pytest.mark.parametrize("weights", [np.ones(12), np.arange(4.0, 16.0)], ids=["equal", "unequal"])
def test_statistic_is_the_papers_equation(weights: np.ndarray) -> None:
    x, y = normal(12, seed=1), normal(12, seed=2)
    found = independence_test(x, y, num_functions=3, bandwidth=0.7, weights=weights, generator=seeded(5), **ASYMPTOTIC)
    generator = seeded(5)
    fourier = []
    for column in (x, y):
        drawn = draw_fourier_functions(1, 3, generator=generator, dtype=torch.float64)
        z = standardise(column.numpy())[:, None] / 0.7
        fourier.append(math.sqrt(2) * np.cos(z * drawn.omega.numpy() + drawn.phase.numpy()))
    assert found.statistic.item() == pytest.approx(slow_statistic(*fourier, weights), rel=1e-8)


def test_statistic_over_functions_squared_is_hsic_on_average() -> None:
    """Unbiased over the draws, so the mean settles at (n/(n−1))²·HSIC at the rate of its standard error."""
    n, q = 60, 100
    x = normal(n, seed=3)
    y = x.square() + 0.5 * normal(n, seed=4)
    expected = (n / (n - 1)) ** 2 * biased_hsic(standardise(x.numpy()), standardise(y.numpy()), 0.8)
    draws = [
        independence_test(x, y, num_functions=q, bandwidth=0.8, generator=seeded(s), **ASYMPTOTIC) for s in range(80)
    ]
    values = np.array([draw.statistic.item() / q**2 for draw in draws])
    error = values.std(ddof=1) / math.sqrt(len(values))
    assert error < 0.02 * expected
    assert abs(values.mean() - expected) < 4 * error


def test_many_functions_come_close_to_hsic_and_keep_its_order() -> None:
    n, q = 80, 1000
    x = normal(n, seed=5)
    y = torch.stack([s * x.square() + normal(n, seed=6 + i) for i, s in enumerate((0.0, 0.3, 0.7, 1.5, 4.0))], 1)
    found = independence_test(x, y, num_functions=q, bandwidth=1.0, **ASYMPTOTIC).statistic[0].numpy() / q**2
    exact = np.array([biased_hsic(standardise(x.numpy()), standardise(c.numpy()), 1.0) for c in y.T])
    np.testing.assert_allclose(found, (n / (n - 1)) ** 2 * exact, rtol=0.12)
    assert (found.argsort() == exact.argsort()).all()


def test_linear_case_is_squared_correlation() -> None:
    x, y = normal(30, seed=7), normal(30, seed=8)
    correlation = np.corrcoef(x.numpy(), y.numpy())[0, 1]
    found = independence_test(x, y, num_functions=0, **ASYMPTOTIC)
    assert found.statistic.item() == pytest.approx((correlation * 30 / 29) ** 2)


def test_a_square_is_found_where_correlation_finds_nothing() -> None:
    x = torch.linspace(-1, 1, 100)
    for method in ("permutation", "asymptotic"):
        assert independence_test(x, x.square(), method=method).p_value.item() <= 0.001
        assert independence_test(x, x.square(), method=method, num_functions=0).p_value.item() > 0.9


# The null distribution


def test_mean_and_variance_are_those_of_all_permutations() -> None:
    columns = torch.stack([normal(6, seed=9), normal(6, seed=10).exp()], 1)
    options = {"num_functions": 4, "bandwidth": "median", "share": None}
    a = build_features(columns, generator=seeded(0), **options)
    b = build_features(columns.flip(1), generator=seeded(1), **options)
    every = torch.stack([squared_norms(a.x, b.x[list(order)]) for order in itertools.permutations(range(6))])
    torch.testing.assert_close(null.null_mean(a, b), every.mean(0))
    torch.testing.assert_close(null.permutation_variance(a, b), every.var(0, correction=0))


def test_permutation_p_value_agrees_with_every_arrangement() -> None:
    """A column with three ones has 120 arrangements, many of them tied, so the p-value can be counted."""
    ones = torch.zeros(10)
    ones[:3] = 1
    other = torch.tensor([2.0, 1, 2, 0, 0, 1, 0, 0, 0, 1])
    arrangements = torch.zeros(10, 120)
    for column, rows in enumerate(itertools.combinations(range(10), 3)):
        arrangements[list(rows), column] = 1
    drawn = {"share": None, "num_functions": 5, "bandwidth": 1.0}
    b = build_features(other[:, None].double(), generator=seeded(1), **drawn)
    a = [build_features(c[:, None].double(), generator=seeded(0), **drawn) for c in (ones, *arrangements.T)]
    observed, *every = (squared_norms(side.x, b.x).item() for side in a)
    exact = np.mean(np.array(every) >= observed * (1 - 1e-9))
    found = null.permutation_p_values(torch.tensor([[observed]]), a[0], b, 4000, seeded(2)).item()
    assert found == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 4000))


def test_asymptotic_tail_is_that_of_the_weighted_chi_squares() -> None:
    columns = normal(2000, 1, seed=11)
    options = {"num_functions": 8, "bandwidth": 1.0, "share": None}
    a = build_features(columns, generator=seeded(0), **options)
    b = build_features(normal(2000, 1, seed=12), generator=seeded(1), **options)
    scales = torch.outer(a.x.square().sum(0)[0], b.x.square().sum(0)[0]).flatten()
    sums = normal(100_000, len(scales), seed=13).square() @ scales / 1999
    points = torch.quantile(sums, torch.tensor([0.5, 0.9, 0.95, 0.99], dtype=torch.float64))
    found = torch.stack([null.asymptotic_p_values(point.reshape(1, 1), a, b).squeeze() for point in points])
    torch.testing.assert_close(found, torch.tensor([0.5, 0.1, 0.05, 0.01]).double(), rtol=0.1, atol=0)


NULLS = {
    "normal": lambda z: z,
    "skewed": torch.exp,
    "rectified": lambda z: (z - 0.5).clamp_min(0),
    "binary": lambda z: (z > 0.4).double(),
}


@pytest.mark.parametrize("shape", NULLS)
@pytest.mark.parametrize(("n", "method"), [(12, "asymptotic"), (100, "asymptotic"), (30, "permutation")])
def test_independent_pairs_are_rejected_as_often_as_said(shape: str, n: int, method: str) -> None:
    transform = NULLS[shape]
    rejected = [
        independence_test(
            transform(normal(n, 30, seed=100 + i)),
            transform(normal(n, 30, seed=200 + i)),
            method=method,
            permutations=99,
            num_functions=20,
        ).p_value.le(0.05)
        for i in range(6)
    ]
    least = 0.02 if shape == "binary" else 0.035  # few distinct values cannot hit 5 %, only stay below
    assert least < torch.stack(rejected).double().mean().item() < 0.065


def test_independent_pairs_under_weights_are_rejected_about_as_often() -> None:
    a, b = normal(150, 40, seed=14), normal(150, 40, seed=15).exp()
    weights = torch.rand(150, generator=seeded(16)) ** 2
    found = independence_test(a, b, weights=weights, **ASYMPTOTIC)
    assert found.effective_size == pytest.approx(weights.sum().item() ** 2 / weights.square().sum().item(), rel=1e-5)
    assert 0.02 < found.p_value.le(0.05).double().mean().item() < 0.08


@pytest.mark.parametrize("method", ["permutation", "asymptotic"])
@pytest.mark.parametrize("kind", DEPENDENCES)
def test_dependent_pairs_are_found(kind: str, method: str) -> None:
    x = normal(100, 25, seed=17)
    y = DEPENDENCES[kind](x, normal(100, 25, seed=18))
    found = independence_test(x, y, method=method, permutations=199)
    assert found.p_value.diagonal().le(0.05).double().mean().item() > 0.85
    assert found.strength.diagonal().mean() > 3 * found.strength.mean()


def test_the_default_number_of_functions_beats_the_papers_five() -> None:
    x = normal(60, 60, seed=19)
    y = x.square() + 1.5 * normal(60, 60, seed=20)
    few, many = (independence_test(x, y, num_functions=q, **ASYMPTOTIC).p_value.diagonal() for q in (5, 100))
    assert many.le(0.05).sum() > few.le(0.05).sum() + 5


# Invariances


def test_order_shift_and_scale_do_not_matter() -> None:
    x, y = normal(50, 2, seed=21), normal(50, 3, seed=22).exp()
    found = independence_test(x, y, **ASYMPTOTIC)
    order = torch.randperm(50, generator=seeded(23))
    for again in (
        independence_test(x[order], y[order], **ASYMPTOTIC),
        independence_test(1000 + 3 * x, 1e-6 * y - 5, **ASYMPTOTIC),
    ):
        torch.testing.assert_close(again.statistic, found.statistic, rtol=1e-6, atol=0)
        torch.testing.assert_close(again.p_value, found.p_value, rtol=1e-5, atol=1e-12)


def test_median_distance_leaves_equal_values_out() -> None:
    few = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 3.0]).double()
    expected = [np.median([1, 3, 1, 3, 1, 3, 1, 3, 2]), 1.0]
    assert median_distance(torch.stack([few, torch.zeros(6).double()], 1)).tolist() == expected
    many = normal(3000, 1, seed=24)
    exact = torch.pdist(many).median().item()
    assert median_distance(many).item() == pytest.approx(exact, rel=0.02)


def test_small_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = normal(40, 5, seed=25), normal(40, 4, seed=26).exp()
    whole = independence_test(x, y, permutations=50)
    for module in (features_module, null):
        monkeypatch.setattr(module, "CHUNK_ELEMENTS", 2 * 40 * 100)
    parts = independence_test(x, y, permutations=50)
    torch.testing.assert_close(parts.statistic, whole.statistic, rtol=1e-7, atol=0)
    assert torch.equal(parts.p_value, whole.p_value)


def test_principal_axes_change_no_norm() -> None:
    for n, q in ((30, 8), (12, 40)):
        x, y = normal(n, 3, q, seed=27), normal(n, 2, q, seed=28)
        turned = squared_norms(features_module._rotate(x), features_module._rotate(y))
        torch.testing.assert_close(turned, torch.einsum("nia,njb->ijab", x, y).square().sum((2, 3)))


def test_arrays_tensors_and_integers_mean_the_same() -> None:
    x = np.arange(40) % 7
    y = np.arange(40) % 5 > 1
    found = independence_test(x, y)
    for again in (
        independence_test(torch.from_numpy(x), torch.from_numpy(y)),
        independence_test(x[:, None].astype(np.float32), torch.from_numpy(y).double().requires_grad_()),
    ):
        torch.testing.assert_close(again.statistic, found.statistic, rtol=1e-6, atol=0)
        assert torch.equal(again.p_value, found.p_value)
    assert found.statistic.shape == found.p_value.shape == found.strength.shape == (1, 1)
    assert (found.n, found.method, found.num_functions) == (40, "permutation", 100)


@pytest.mark.gpu
def test_a_gpu_finds_the_same() -> None:
    x, y = normal(60, 4, seed=43), normal(60, 3, seed=44).exp()
    weights = torch.linspace(1, 2, 60)
    for options in ({"permutations": 99}, {**ASYMPTOTIC, "weights": weights}):
        here = independence_test(x, y, **options)
        there = independence_test(x.cuda(), y, **options)
        assert there.p_value.is_cuda
        torch.testing.assert_close(there.statistic.cpu(), here.statistic, rtol=1e-6, atol=0)
        torch.testing.assert_close(there.p_value.cpu(), here.p_value, rtol=1e-5, atol=1e-9)
    pairs = pairwise_independence_test(x.cuda(), generator=torch.Generator("cuda").manual_seed(0))
    assert pairs.p_value.is_cuda


# Randomness


def test_global_random_state_is_left_alone() -> None:
    x, y = normal(20, seed=29), normal(20, seed=30)
    before, before_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    independence_test(x, y, permutations=9)
    pairwise_independence_test(torch.stack([x, y], 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == before_numpy).all()  # noqa: NPY002


def test_a_call_repeats_itself_and_a_generator_moves_on() -> None:
    x, y = normal(20, seed=31), normal(20, seed=32)
    assert independence_test(x, y).statistic.item() == independence_test(x, y).statistic.item()
    generator = seeded(0)
    first, second = (independence_test(x, y, generator=generator).statistic.item() for _ in range(2))
    assert first == independence_test(x, y).statistic.item()
    assert first != second


# Pairs and adjustment


def test_pairs_are_symmetric_and_adjusted_over_pairs() -> None:
    x = normal(80, 4, seed=33)
    table = torch.cat([x, x[:, :1].square()], 1)
    for method in ("asymptotic", "permutation"):
        plain = pairwise_independence_test(table, method=method, adjustment="none")
        holm = pairwise_independence_test(table, method=method)
        torch.testing.assert_close(plain.p_value, plain.p_value.T, equal_nan=True)
        torch.testing.assert_close(plain.statistic, plain.statistic.T)
        assert plain.p_value.diagonal().isnan().all()
        assert plain.p_value[0, 4] <= 0.001
        torch.testing.assert_close(holm.p_value[0, 4], 10 * plain.p_value[0, 4])
        assert ((plain.p_value <= 0.001).sum(), plain.adjustment, holm.adjustment) == (2, "none", "holm")


def test_adjustments_on_a_case_worked_by_hand() -> None:
    p = torch.tensor([0.04, 0.01, 0.03, 0.5], dtype=torch.float64)
    torch.testing.assert_close(adjust_holm(p), torch.tensor([0.09, 0.04, 0.09, 0.5]).double())
    expected = torch.tensor([0.16 / 3, 0.04, 0.16 / 3, 0.5]).double()
    torch.testing.assert_close(adjust_benjamini_hochberg(p), expected)
    table = independence_test(normal(30, 2, seed=34), normal(30, 2, seed=35), adjustment="holm", **ASYMPTOTIC)
    plain = independence_test(normal(30, 2, seed=34), normal(30, 2, seed=35), **ASYMPTOTIC)
    torch.testing.assert_close(table.p_value.flatten(), adjust_holm(plain.p_value.flatten()))


# Weights


def test_equal_weights_are_no_weights() -> None:
    x, y = normal(30, seed=36), normal(30, seed=37)
    weighted = independence_test(x, y, weights=torch.full((30,), 0.1))
    assert weighted.p_value.item() == independence_test(x, y).p_value.item()


def test_weights_that_balance_a_table_remove_the_dependence() -> None:
    counts = {(0, 0): 40, (0, 1): 10, (1, 0): 10, (1, 1): 40}
    rows = torch.tensor([cell for cell, count in counts.items() for _ in range(count)])
    weights = torch.tensor([1 / count for count in counts.values() for _ in range(count)])
    before = independence_test(rows[:, 0], rows[:, 1], **ASYMPTOTIC)
    after = independence_test(rows[:, 0], rows[:, 1], weights=weights, **ASYMPTOTIC)
    assert before.p_value.item() < 1e-6
    assert before.strength.item() == pytest.approx(0.6, abs=0.01)
    assert after.statistic.item() == pytest.approx(0, abs=1e-9)
    assert after.p_value.item() > 0.9


# Mistakes


@pytest.mark.parametrize("method", ["permutation", "asymptotic"])
@pytest.mark.parametrize("constant", [0.0, 0.1, 1e8])
def test_a_constant_column_is_independent_of_everything(constant: float, method: str) -> None:
    table = torch.stack([torch.full((30,), constant), torch.arange(30.0)], 1)
    found = independence_test(table, torch.arange(30.0), method=method)
    assert found.p_value[0, 0] == 1
    assert found.statistic[0, 0] == found.strength[0, 0] == 0
    assert found.p_value[1, 0] <= 0.001


X = torch.arange(20.0)
WITH_NAN = torch.stack([X, torch.where(X == 7, torch.nan, X)], 1)
MISTAKES = [
    ((X, X[:15]), {}, "a has 20 rows and b has 15"),
    ((X[:9], X[:9]), {}, "a has 9 rows: a test of independence needs at least 10"),
    ((X, WITH_NAN), {}, "column 1 of b holds nan in row 7"),
    ((X, X.reshape(5, 2, 2)), {}, r"b has shape \(5, 2, 2\)"),
    ((X, torch.zeros(20, 0)), {}, r"b has shape \(20, 0\)"),
    ((X, np.array(["x"] * 20)), {}, "b holds <U1 values"),
    ((X, X * 1j), {}, "b holds complex numbers"),
    ((X, X), {"method": "permutations"}, "unknown method 'permutations': did you mean 'permutation'"),
    ((X, X), {"adjustment": "bonferoni"}, "unknown adjustment 'bonferoni'"),
    ((X, X), {"num_functions": 0.3}, "num_functions is 0.3"),
    ((X, X), {"num_functions": -1}, "num_functions is -1"),
    ((X, X), {"permutations": 0}, "permutations is 0"),
    ((X, X), {"bandwidth": "mean"}, "bandwidth is 'mean'"),
    ((X, X), {"bandwidth": 0}, "bandwidth is 0"),
    ((X, X), {"weights": X[:5]}, r"weights has shape \(5,\)"),
    ((X, X), {"weights": X - 1}, "weights must be finite, non-negative"),
    ((X, X), {"weights": X}, "rows of unequal weight cannot be permuted"),
    ((X, X), {"weights": X == 3, **ASYMPTOTIC}, "effective sample size of 1.0"),
]


@pytest.mark.parametrize(("data", "options", "message"), MISTAKES, ids=[m[2] for m in MISTAKES])
def test_a_mistake_is_one_clear_sentence(data: tuple, options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        independence_test(*data, **options)
    assert "\n" not in str(caught.value)


def test_one_column_has_no_pairs() -> None:
    with pytest.raises(UserError, match="single column"):
        pairwise_independence_test(X)


# The picture


@pytest.fixture
def pyplot():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    yield plt
    plt.close("all")


def test_picture_shows_the_strengths_and_counts_the_pairs(pyplot) -> None:
    x = normal(120, 3, seed=38)
    table = torch.cat([x, x[:, :1].square()], 1)
    figure = plot_dependence(table, names=["width", "height", "age", "area"])
    ax = figure.axes[0]
    shown = ax.images[0].get_array()
    strength = pairwise_independence_test(table).strength.numpy()
    np.testing.assert_allclose(shown[~np.eye(4, dtype=bool)], strength[~np.eye(4, dtype=bool)])
    assert shown.mask.diagonal().all()
    assert ax.get_title() == "1 of 6 pairs dependent at 0.05 (dots)"
    assert sorted(map(tuple, ax.collections[0].get_offsets().tolist())) == [(0.0, 3.0), (3.0, 0.0)]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["width", "height", "age", "area"]


def test_picture_can_bring_dependent_features_together(pyplot) -> None:
    x = normal(120, 3, seed=38)
    table = torch.cat([x, x[:, :1].square()], 1)
    ax = plot_dependence(table, order="clustered").axes[0]
    places = {label.get_text(): i for i, label in enumerate(ax.get_yticklabels())}
    assert abs(places["0"] - places["3"]) == 1
    pair = places["0"], places["3"]
    assert set(map(tuple, ax.collections[0].get_offsets().tolist())) == {pair, pair[::-1]}
    shown = ax.images[0].get_array()[pair]
    assert shown == pytest.approx(pairwise_independence_test(table).strength[0, 3].item())
    with pytest.raises(UserError, match="unknown order 'cluster': did you mean 'clustered'"):
        plot_dependence(table, order="cluster")


def test_picture_before_and_after_shares_colours_and_functions(pyplot) -> None:
    table = normal(60, 3, seed=39)
    weights = 0.5 + torch.rand(60, generator=seeded(40))
    generator = seeded(41)
    figure = plot_dependence(table, weights=weights, generator=generator)
    before, after = figure.axes[:2]
    assert before.images[0].get_clim() == after.images[0].get_clim()
    expected = pairwise_independence_test(table, weights=weights, generator=seeded(41)).strength.numpy()
    np.testing.assert_allclose(after.images[0].get_array()[0, 1:], expected[0, 1:])
    assert "effective sample 9" in after.get_title()
    panels = pyplot.subplots(1, 2)[1]
    assert plot_dependence(table, weights=weights, ax=panels) is panels[0].figure
    with pytest.raises(UserError, match="expected 2"):
        plot_dependence(table, weights=weights, ax=panels[0])


def test_picture_of_many_features_stays_readable(pyplot) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(normal(50, 90, seed=42).numpy(), columns=[f"unit {i}" for i in range(90)])
    ax = plot_dependence(table).axes[0]
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert len(labels) <= 24
    assert labels[:2] == ["unit 0", "unit 4"]
    with pytest.raises(UserError, match="names has 2 entries: expected one for each of the 90 features"):
        plot_dependence(table, names=["a", "b"])
