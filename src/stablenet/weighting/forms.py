"""The two weighted covariances of the field, as one: Σ = s·Uᵀ A U with A = diag(d) − c·v vᵀ.

| form         | d         | v | c   | s       | meaning                                          |
|--------------|-----------|---|-----|---------|--------------------------------------------------|
| `paper`      | w²        | w | 1/n | 1/(n−1) | covariance of the weighted features w·u (Eq. sigmaabw) |
| `covariance` | p = w/Σw  | p | 1   | 1       | covariance under the weighted distribution       |

The `paper` form is not shift-invariant, and it is not zero for independent features once the weights differ:
it then measures E[u]·E[v]·var(w) as well. `covariance` is zero exactly when the features are uncorrelated under
the weights, and is the form to prefer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from stablenet.errors import UserError
from stablenet.registry import unknown_name

Form = Literal["paper", "covariance"]


@dataclass(frozen=True)
class WeightMeasure:
    """The matrix A of one weight vector w (n,).   d: (n,).   v: (n,).   c, s: scalars.   total: Σw."""

    d: Tensor
    v: Tensor
    c: float
    s: float
    total: Tensor


def measure_weights(w: Tensor, form: Form) -> WeightMeasure:
    """A's parts for weights w (n,), non-negative and not all zero."""
    n, total = w.shape[0], w.sum()
    if form == "paper":
        return WeightMeasure(w * w, w, 1 / n, 1 / max(n - 1, 1), total)
    p = w / total
    return WeightMeasure(p, p, 1.0, 1.0, total)


def pull_back(a: WeightMeasure, grad_d: Tensor, grad_v: Tensor, form: Form) -> Tensor:
    """The gradient with respect to w (n,) from those with respect to d and v (the chain rule)."""
    if form == "paper":
        return 2 * a.v * grad_d + grad_v
    grad_p = grad_d + grad_v
    return (grad_p - a.v @ grad_p) / a.total


def centre_for(form: Form, u: Tensor) -> Tensor:
    """u (n, …) with its column means removed where that changes nothing but the rounding.

    The `covariance` form does not see a shift, and float32 gradients near uniform weights gain three digits
    from the centring. In the `paper` form it would change the objective, so u is returned as it is.
    """
    return u - u.mean(0) if form == "covariance" else u


def check_form(form: str) -> None:
    if form not in get_args(Form):
        raise UserError(unknown_name("form", form, get_args(Form)))
