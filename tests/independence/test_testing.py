"""The test against HSIC by definition; its null distribution against all permutations; adjusted p-values by hand."""

import itertools
import math

import numpy as np
import pytest
import torch

from stablenet.independence import independence_test, pairwise_independence_test, testing
from stablenet.independence.column_features import build_features, squared_norms
from stablenet.independence.testing import adjust_benjamini_hochberg, adjust_holm
from stablenet.weighting.fourier import draw_fourier_functions
from tests.independence.draws import ASYMPTOTIC, normal, seeded
from tests.reference.hsic import biased_hsic, slow_statistic, standardise


def test_mean_and_variance_are_those_of_all_permutations() -> None:
    columns = torch.stack([normal(6, seed=9), normal(6, seed=10).exp()], 1)
    options = {"num_functions": 4, "bandwidth": "median", "share": None}
    a = build_features(columns, generator=seeded(0), **options)
    b = build_features(columns.flip(1), generator=seeded(1), **options)
    every = torch.stack([squared_norms(a.x, b.x[list(order)]) for order in itertools.permutations(range(6))])
    torch.testing.assert_close(testing.null_mean(a, b), every.mean(0))
    torch.testing.assert_close(testing.permutation_variance(a, b), every.var(0, correction=0))


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
    found = testing.permutation_p_values(torch.tensor([[observed]]), a[0], b, 4000, seeded(2)).item()
    assert found == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 4000))


def test_asymptotic_tail_is_that_of_the_weighted_chi_squares() -> None:
    columns = normal(2000, 1, seed=11)
    options = {"num_functions": 8, "bandwidth": 1.0, "share": None}
    a = build_features(columns, generator=seeded(0), **options)
    b = build_features(normal(2000, 1, seed=12), generator=seeded(1), **options)
    scales = torch.outer(a.x.square().sum(0)[0], b.x.square().sum(0)[0]).flatten()
    sums = normal(100_000, len(scales), seed=13).square() @ scales / 1999
    points = torch.quantile(sums, torch.tensor([0.5, 0.9, 0.95, 0.99], dtype=torch.float64))
    found = torch.stack([testing.asymptotic_p_values(point.reshape(1, 1), a, b).squeeze() for point in points])
    torch.testing.assert_close(found, torch.tensor([0.5, 0.1, 0.05, 0.01]).double(), rtol=0.1, atol=0)


def test_adjustments_on_a_case_worked_by_hand() -> None:
    p = torch.tensor([0.04, 0.01, 0.03, 0.5], dtype=torch.float64)
    torch.testing.assert_close(adjust_holm(p), torch.tensor([0.09, 0.04, 0.09, 0.5]).double())
    expected = torch.tensor([0.16 / 3, 0.04, 0.16 / 3, 0.5]).double()
    torch.testing.assert_close(adjust_benjamini_hochberg(p), expected)
    table = independence_test(normal(30, 2, seed=34), normal(30, 2, seed=35), adjustment="holm", **ASYMPTOTIC)
    plain = independence_test(normal(30, 2, seed=34), normal(30, 2, seed=35), **ASYMPTOTIC)
    torch.testing.assert_close(table.p_value.flatten(), adjust_holm(plain.p_value.flatten()))


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
