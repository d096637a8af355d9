"""The dependence of features under weights: the public functions, and the choice of algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from stablenet.errors import UserError
from stablenet.registry import unknown_name
from stablenet.weighting.statistic import (
    PRODUCTS_UP_TO,
    ROWS_AT_ONCE,
    DirectLabelPairs,
    DirectPairs,
    DirectSamePairs,
    Form,
    GramLabelPairs,
    GramPairs,
    add,
    centre_for,
    check_form,
    label_gram_of,
    measure_weights,
    weighted_covariance,
)

Method = Literal["auto", "direct", "gram"]


class Statistic(Protocol):
    """A dependence as a function of the weights."""

    def value_and_gradient(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """w: (n,).   Returns the value, a scalar, and the gradient (n,)."""


def pairwise_dependence(
    u: Tensor, w: Tensor | None = None, *, form: Form = "covariance", method: Method = "auto"
) -> Tensor:
    r"""Squared weighted cross-covariances, summed over feature pairs: D = Σ_{i<j} ‖Σ_ij‖²_F (Eq. 7, learning_weight).

    u: (n, m, q) Fourier features, see `random_fourier_features`.
    w: (n,) non-negative, sums to n; ones when left out. Its gradient is analytic; u gets none.
    form: "covariance", zero when all features are uncorrelated under w, or "paper" (Eq. 6, sigmaabw), which is not.
    method: "direct" forms the (m·q)² covariance, "gram" n × n products; both exact; "auto" counts and picks.
    Returns a scalar.

    >>> x = torch.linspace(-1, 1, 9)
    >>> pairwise_dependence(torch.stack([x, x], 1).unsqueeze(-1)).item() > 0.1
    True
    """
    w = _checked_weights(u, w)
    check_form(form)
    return _evaluate(prepare_pairs(u.detach(), form, method, evaluations=1), w)


def label_dependence(
    u: Tensor, labels: Tensor, w: Tensor | None = None, *, form: Form = "covariance", method: Method = "auto"
) -> Tensor:
    r"""Squared weighted cross-covariances of every feature with the label: D_y = Σ_i ‖U_iᵀ A Y‖²_F.

    u: (n, m, q) Fourier features.   labels: (n,) integer classes, or (n, C) label columns (soft labels, targets).
    w, form, method: as in `pairwise_dependence`.   Returns a scalar.
    """
    w = _checked_weights(u, w)
    check_form(form)
    return _evaluate(prepare_label_pairs(u.detach(), labels, form, method), w)


def dependence_matrix(u: Tensor, w: Tensor | None = None, *, form: Form = "covariance") -> Tensor:
    """I_AB = ‖Σ_AB‖²_F for all feature pairs.   u: (n, m, q).   w: (n,).   Returns (m, m), symmetric."""
    w = _checked_weights(u, w)
    check_form(form)
    n, m, q = u.shape
    rows = centre_for(form, u).reshape(n, m * q)
    a = measure_weights(w, form)
    sigma = weighted_covariance(rows, a, rows.T @ a.v)
    return sigma.square().view(m, q, m, q).sum((1, 3))


def prepare_pairs(
    u: Tensor, form: Form, method: Method, evaluations: int, dtype: torch.dtype | None = None
) -> Statistic:
    """The feature-pair statistic of u (n, m, q), ready for the given number of evaluations, in `dtype` or that of u."""
    if choose_method(u, method, evaluations) == "direct":
        return DirectPairs(u.to(dtype or u.dtype), form)
    return GramPairs(u, form, dtype)


def prepare_same_pairs(
    u: Tensor, form: Form, method: Method, evaluations: int, dtype: torch.dtype | None = None
) -> Statistic:
    """The feature-pair statistic of u (n, m, q) that pairs functions of the same number only (published code)."""
    if len(u) <= ROWS_AT_ONCE and choose_method(u[..., :1], method, evaluations) == "direct":
        return DirectSamePairs(u.to(dtype or u.dtype), form)
    return SamePairs([prepare_pairs(part, form, method, evaluations, dtype) for part in u.split(1, 2)])


class SamePairs:
    """2·Σ_a D_a over the functions a, one after the other: the value of `DirectSamePairs`."""

    def __init__(self, parts: Sequence[Statistic]) -> None:
        self._parts = parts

    def value_and_gradient(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """w: (n,).   Returns the value, a scalar, and its gradient (n,)."""
        values, gradients = zip(*(part.value_and_gradient(w) for part in self._parts), strict=True)
        return 2 * add(list(values)), 2 * add(list(gradients))


def prepare_label_pairs(u: Tensor, labels: Tensor, form: Form, method: Method) -> Statistic:
    """The feature–label statistic of u (n, m, q).

    Label pairs need only n·m·q·C multiply-adds in the direct form, but integer labels give their number of classes
    away only to the host; the Gram form does without. `auto` therefore takes it while n × n products are small.
    """
    _check_method(method)
    n, m, q = u.shape
    if method == "gram" or (method == "auto" and n <= m * q):
        return GramLabelPairs(u, label_gram_of(labels, u.dtype), form)
    columns = labels.to(u.dtype) if labels.ndim == 2 else _one_hot(labels, u.dtype)
    return DirectLabelPairs(u, columns, form)


def choose_method(u: Tensor, method: Method, evaluations: int) -> Literal["direct", "gram"]:
    """Count multiply-adds of both forms over all evaluations and take the cheaper (u: (n, m, q))."""
    _check_method(method)
    if method != "auto":
        return method
    n, m, q = u.shape
    direct = 2 * n * (m * q) ** 2 * evaluations
    products = q * (q + 1) // 2 if q <= PRODUCTS_UP_TO else q + 10  # + 10: the traffic of the K_i, in products
    gram = n * n * m * (q + products) + (n * n + 4 * n * m * q) * evaluations
    return "direct" if direct < gram else "gram"


class _Evaluate(torch.autograd.Function):
    """Value forward, analytic gradient backward."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, w: Tensor, statistic: Statistic) -> Tensor:
        value, gradient = statistic.value_and_gradient(w)
        ctx.save_for_backward(gradient)
        return value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: torch.autograd.function.FunctionCtx, outer: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return outer * gradient, None


def _evaluate(statistic: Statistic, w: Tensor) -> Tensor:
    result: Tensor = _Evaluate.apply(w, statistic)
    return result


def _one_hot(labels: Tensor, dtype: torch.dtype) -> Tensor:
    _, codes = labels.unique(return_inverse=True)
    return torch.nn.functional.one_hot(codes).to(dtype)


def _checked_weights(u: Tensor, w: Tensor | None) -> Tensor:
    if u.ndim != 3:
        raise UserError(
            f"u must have shape (samples, features, functions), got {tuple(u.shape)}; "
            "random_fourier_features makes it from (samples, features)"
        )
    if w is None:
        return torch.ones(u.shape[0], dtype=u.dtype, device=u.device)
    if w.shape != u.shape[:1]:
        raise UserError(f"w must have one weight per sample, shape ({u.shape[0]},), got {tuple(w.shape)}")
    return w.to(u.dtype)


def _check_method(method: str) -> None:
    if method not in get_args(Method):
        raise UserError(unknown_name("method", method, get_args(Method)))
