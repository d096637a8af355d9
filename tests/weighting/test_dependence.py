"""The dependence of features against loops, autograd and NumPy; its invariances in both forms."""

import numpy as np
import pytest
import torch

from stablenet.errors import UserError
from stablenet.weighting import (
    dependence_matrix,
    label_dependence,
    pairwise_dependence,
    random_fourier_features,
    statistic,
)
from stablenet.weighting.dependence import choose_method, prepare_same_pairs
from stablenet.weighting.statistic import PRODUCTS_UP_TO, sum_of_squared_grams
from tests.reference import dependence as reference

FORMS = ("paper", "covariance")
METHODS = ("direct", "gram")


def problem(seed=0, n=9, m=4, q=3):
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, m, generator=g, dtype=torch.float64)
    w = torch.rand(n, generator=g, dtype=torch.float64)
    labels = torch.randint(0, 3, (n,), generator=g)
    return random_fourier_features(z, q, generator=g), w * n / w.sum(), labels


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("q", [1, 3])
def test_equals_the_loops(form, method, q):
    u, w, labels = problem(q=q)
    expected = reference.pairwise(u.numpy(), w.numpy(), form)
    assert pairwise_dependence(u, w, form=form, method=method).item() == pytest.approx(expected, rel=1e-12)
    expected = reference.with_label(u.numpy(), labels.numpy(), w.numpy(), form)
    assert label_dependence(u, labels, w, form=form, method=method).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_matrix_holds_every_pair(form):
    u, w, _ = problem()
    matrix = dependence_matrix(u, w, form=form)
    for i in range(4):
        for j in range(4):
            sigma = reference.COVARIANCES[form](u[:, i].numpy(), u[:, j].numpy(), w.numpy())
            assert matrix[i, j].item() == pytest.approx((sigma**2).sum(), rel=1e-12)
    total = pairwise_dependence(u, w, form=form)
    assert torch.triu(matrix, 1).sum().item() == pytest.approx(total.item(), rel=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", METHODS)
def test_gradient_is_that_of_the_value(form, method):
    u, w, labels = problem(n=7)
    w.requires_grad_()
    assert torch.autograd.gradcheck(lambda w: pairwise_dependence(u, w, form=form, method=method), w)
    assert torch.autograd.gradcheck(lambda w: label_dependence(u, labels, w, form=form, method=method), w)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", METHODS)
def test_pairs_of_the_same_function_are_twice_the_sum_over_functions(monkeypatch, form, method):
    u, w, _ = problem()
    expected = 2 * sum(reference.pairwise(u[..., a : a + 1].numpy(), w.numpy(), form) for a in range(3))
    value, gradient = prepare_same_pairs(u, form, method, evaluations=1).value_and_gradient(w)
    monkeypatch.setattr("stablenet.weighting.dependence.ROWS_AT_ONCE", 0)
    one_by_one = prepare_same_pairs(u, form, method, evaluations=1).value_and_gradient(w)
    torch.testing.assert_close((value, gradient), one_by_one)
    assert value.item() == pytest.approx(expected, rel=1e-12)
    for i in range(len(w)):  # central differences; the value is a polynomial or a smooth quotient of w
        up, down = w.clone(), w.clone()
        up[i] += 1e-5
        down[i] -= 1e-5
        values = [prepare_same_pairs(u, form, method, 1).value_and_gradient(v)[0].item() for v in (up, down)]
        assert gradient[i].item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_gradient_equals_autograd_through_the_definition(form):
    u, w, _ = problem(n=12, m=5, q=2)
    rows = u.reshape(12, -1)

    def by_definition(w):
        n = len(w)
        if form == "paper":
            x = w[:, None] * rows
            centred = x - x.mean(0)
            sigma = centred.T @ centred / (n - 1)
        else:
            p = w / w.sum()
            centred = rows - p @ rows
            sigma = centred.T @ (p[:, None] * centred)
        return sum(
            sigma[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].square().sum() for i in range(5) for j in range(i + 1, 5)
        )

    w.requires_grad_()
    (expected,) = torch.autograd.grad(by_definition(w), w)
    for method in METHODS:
        (found,) = torch.autograd.grad(pairwise_dependence(u, w, form=form, method=method), w)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_many_functions_take_the_other_route_to_the_same_matrix():
    u, _, _ = problem(m=40, q=PRODUCTS_UP_TO + 2)
    blocks = u.permute(1, 2, 0).contiguous()
    expected = sum(torch.square(b.T @ b) for b in blocks)
    torch.testing.assert_close(sum_of_squared_grams(blocks), expected)


@pytest.mark.parametrize("n", [9, 64, 130])
def test_products_in_strips_are_symmetric_and_the_same(monkeypatch, n):
    monkeypatch.setattr(statistic, "LEAST_FOR_STRIPS", 0)
    blocks = torch.randn(6, 3, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = sum_of_squared_grams(blocks)
    expected = torch.einsum("iqn,iqk->ink", blocks, blocks).square().sum(0)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found, found.T)


def test_memory_kept_between_calls_serves_other_sizes_and_modes():
    room = statistic.Room()
    with torch.inference_mode():
        first = room.room(torch.empty(4, 3, 9), 3).fill_(1)
    smaller = room.room(torch.empty(2, 3, 9), 2).fill_(2)  # outside of the mode in which it was made
    assert smaller.data_ptr() == first.data_ptr()
    assert smaller.shape == (2, 2, 9)
    assert room.room(torch.empty(4, 3, 9, dtype=torch.float64), 3).data_ptr() != first.data_ptr()
    assert room.room(torch.empty(2**21 + 1, 1, 1), 1).data_ptr() not in {first.data_ptr(), 0}
    assert room._kept[torch.float32].data_ptr() == first.data_ptr()  # what is too large is not kept
    u, w, _ = problem()
    with torch.inference_mode():
        within = pairwise_dependence(u, w, method="gram").item()
    pairwise_dependence(torch.cat([u, u], 1), w, method="gram")
    assert pairwise_dependence(u, w, method="gram").item() == within


@pytest.mark.parametrize("form", FORMS)
def test_another_type_is_worked_in_as_if_it_were_given(form):
    u, w, _ = problem(n=40, m=6)
    expected = statistic.GramPairs(u.float().double(), form).value_and_gradient(w * 40 / w.sum())
    found = statistic.GramPairs(u.float(), form, torch.float64).value_and_gradient(w * 40 / w.sum())
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_covariance_form_vanishes_for_independent_features_and_the_paper_form_does_not():
    # A full grid of two features is exactly independent, also under any product of weights.
    a, b = torch.meshgrid(torch.linspace(-1, 1, 12), torch.linspace(0, 3, 12), indexing="ij")
    z = torch.stack([a.flatten(), b.flatten()], 1).double()
    u = random_fourier_features(z, 4, generator=torch.Generator().manual_seed(1))
    w = (1 + 0.8 * z[:, 0]) * (0.2 + z[:, 1])
    w = w / w.mean()
    assert pairwise_dependence(u, w, form="covariance").item() < 1e-28
    assert pairwise_dependence(u, w, form="paper").item() > 1e-3


def test_square_is_found_where_the_linear_form_finds_nothing():
    x = torch.linspace(-1, 1, 201, dtype=torch.float64)
    z = torch.stack([x, x**2], 1)
    z = (z - z.mean(0)) / z.std(0)
    linear = pairwise_dependence(random_fourier_features(z, 0))
    fourier = pairwise_dependence(random_fourier_features(z, 5, generator=torch.Generator().manual_seed(0)))
    assert linear.item() < 1e-20
    assert fourier.item() > 0.01


@pytest.mark.parametrize("form", FORMS)
def test_order_of_samples_and_features_does_not_matter(form):
    u, w, labels = problem(n=11, m=5)
    rows, columns = torch.randperm(11), torch.randperm(5)
    moved = u[rows][:, columns]
    assert torch.allclose(pairwise_dependence(u, w, form=form), pairwise_dependence(moved, w[rows], form=form))
    assert torch.allclose(
        label_dependence(u, labels, w, form=form), label_dependence(moved, labels[rows], w[rows], form=form)
    )


def test_scale_of_the_weights_does_not_matter_in_the_covariance_form():
    u, w, _ = problem()
    torch.testing.assert_close(pairwise_dependence(u, w), pairwise_dependence(u, 7 * w))


def test_float32_gradient_near_uniform_weights_keeps_its_digits():
    u, w, _ = problem(n=64, m=32, q=5)
    near = 1 + 1e-2 * (w - 1)
    u64, w64 = u, near.requires_grad_()
    (expected,) = torch.autograd.grad(pairwise_dependence(u64, w64, method="direct"), w64)
    w32 = near.detach().float().requires_grad_()
    (found,) = torch.autograd.grad(pairwise_dependence(u.float(), w32, method="gram"), w32)
    error = (found.double() - expected).norm() / expected.norm()
    assert error < 2e-5


def test_auto_counts_operations():
    assert choose_method(torch.empty(256, 512, 5, device="meta"), "auto", 20) == "gram"
    assert choose_method(torch.empty(10_000, 10, 5, device="meta"), "auto", 20) == "direct"


def test_soft_labels_equal_hard_ones_when_they_are_hard():
    u, w, labels = problem()
    columns = torch.nn.functional.one_hot(labels).double()
    for method in METHODS:
        torch.testing.assert_close(
            label_dependence(u, columns, w, method=method), label_dependence(u, labels, w, method=method)
        )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pairwise_dependence(torch.zeros(3, 2)), "shape"),
        (lambda: pairwise_dependence(torch.zeros(3, 2, 1), torch.ones(4)), "one weight per sample"),
        (lambda: pairwise_dependence(torch.zeros(3, 2, 1), form="papr"), "did you mean 'paper'"),
        (lambda: pairwise_dependence(torch.zeros(3, 2, 1), method="fast"), "choose from auto, direct, gram"),
    ],
)
def test_mistakes_are_answered(call, message):
    with pytest.raises(UserError, match=message):
        call()


def test_value_matches_numpy_covariance_under_uniform_weights():
    u, _, _ = problem(q=1)
    sigma = np.cov(u[:, :, 0].numpy().T)
    expected = sum(sigma[i, j] ** 2 for i in range(4) for j in range(i + 1, 4))
    assert pairwise_dependence(u, form="paper").item() == pytest.approx(expected, rel=1e-12)
