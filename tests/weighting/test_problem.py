"""The share that labels explain, and the doubt about it, against their definitions."""

import pytest
import torch

from stablenet.errors import UserError
from stablenet.weighting import solve_dataset
from stablenet.weighting.problem import chance_share, doubt, unit_functions, unit_labels
from stablenet.weighting.settings import WeightingSettings


def correlation_ratio(column, labels, w):
    """Share of the weighted variance between the classes, class by class; the variance is that of equal weights."""
    n, mean, between = len(column), (w * column).mean(), 0.0
    for label in labels.unique():
        k = labels == label
        total = w[k].sum()
        between += total / n * ((w[k] * column[k]).sum() / total - mean) ** 2
    return between / column.var(correction=0)


def made(n=40, m=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (n,), generator=g)
    u = torch.randn(n, m, 2, generator=g, dtype=torch.float64) + labels[:, None, None]
    return u, labels


def test_label_pairs_give_the_mean_correlation_ratio():
    u, labels = made()
    g = torch.Generator().manual_seed(1)
    w = torch.rand(40, generator=g, dtype=torch.float64)
    for label in labels.unique():  # what the weights of a whole set keep
        w[labels == label] /= w[labels == label].mean()
    rows, columns = unit_functions(u).flatten(1), unit_labels(labels, torch.float64)
    a = w / w.sum()
    covariance = rows.T @ (a[:, None] * columns) - torch.outer(rows.T @ a, columns.T @ a)
    flat = u.flatten(1)
    expected = torch.stack([correlation_ratio(flat[:, j], labels, w) for j in range(flat.shape[1])]).mean()
    torch.testing.assert_close(covariance.square().sum(), expected)


def test_the_solution_tells_the_share_before():
    u, labels = made(n=200)
    z = u[..., 0].float()
    solution = solve_dataset(z, labels, num_functions=0)
    expected = torch.stack([correlation_ratio(z[:, j], labels, torch.ones(200)) for j in range(3)]).mean()
    assert solution.dependence[0].item() == pytest.approx(expected.item(), rel=1e-4)
    assert solution.dependence[1] < solution.dependence[0]


def test_a_constant_function_has_no_share():
    u, _ = made()
    u[:, 1] = 5.0
    assert (unit_functions(u)[:, 1] == 0).all()


def test_columns_of_a_regression_are_standardized():
    y = torch.randn(50, 2, dtype=torch.float64) * 7 + 3
    columns = unit_labels(y, torch.float64)
    torch.testing.assert_close(columns.square().mean(0), torch.full((2,), 0.5, dtype=torch.float64))


def test_chance_share_is_what_permuted_labels_leave():
    u, labels = made(n=60, m=400)
    g = torch.Generator().manual_seed(2)
    noise = torch.randn(u.shape, generator=g, dtype=torch.float64)
    rows, columns = unit_functions(noise).flatten(1), unit_labels(labels, torch.float64)
    share = (rows.T @ (columns - columns.mean(0)) / 60).square().sum().item()
    assert share == pytest.approx(chance_share(labels), rel=0.1)
    assert chance_share(torch.zeros(11, 2)) == pytest.approx(0.1)


def test_doubt_is_chance_for_each_unit_of_correlation():
    labels = torch.arange(101) % 11
    assert doubt(labels, 0.04) == pytest.approx(0.1 / 0.2)
    assert doubt(labels.repeat(10), 0.04) == pytest.approx(10 / 1009 / 0.2)
    assert doubt(labels, 0.0) > 1e4


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4])
def test_doubt_adds_to_the_penalty(tolerance):
    """The same weights as with the sum written out, in float32 and in float64."""
    g = torch.Generator().manual_seed(3)
    labels = torch.arange(80) % 4
    z = torch.randn(80, 6, generator=g) + labels[:, None]
    plain = {"num_functions": 0, "tolerance": tolerance}
    share = solve_dataset(z, labels, chance=0.0, **plain).dependence[0].item()
    told = solve_dataset(z, labels, penalty=0.01, chance=0.5, **plain)
    written = solve_dataset(z, labels, penalty=0.01 + 0.5 * doubt(labels, share), chance=0.0, **plain)
    torch.testing.assert_close(told.weights, written.weights)
    assert not torch.allclose(told.weights, solve_dataset(z, labels, penalty=0.01, chance=0.0, **plain).weights)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chance": 1.0}, "objective must be 'share'"),
        ({"objective": "share", "chance": 1.0, "pairs": "both"}, "pairs must be 'labels'"),
        ({"objective": "share", "form": "paper"}, "form must be 'covariance'"),
        ({"totals": "classes"}, "tolerance must be set"),
        ({"totals": "classes", "tolerance": 0.1, "pairs": "features"}, "pairs must be"),
        ({"chance": -1.0}, "chance must be 0 or more"),
    ],
)
def test_combinations_without_meaning_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        WeightingSettings(**settings)
