"""The weighted covariance and the statistic D: by its definition, and from the n × n products of samples.

The two covariances of the field are one: Σ = s·Uᵀ A U with A = diag(d) − c·v vᵀ.

| form         | d         | v | c   | s       | meaning                                          |
|--------------|-----------|---|-----|---------|--------------------------------------------------|
| `paper`      | w²        | w | 1/n | 1/(n−1) | covariance of the weighted features w·u (Eq. 6, sigmaabw) |
| `covariance` | p = w/Σw  | p | 1   | 1       | covariance under the weighted distribution       |

The `paper` form is not shift-invariant, and it is not zero for independent features once the weights differ:
it then measures E[u]·E[v]·var(w) as well. `covariance` is zero exactly when the features are uncorrelated under
the weights, and is the form to prefer.

With K_i = U_i U_iᵀ, K = Σ_i K_i and A = diag(d) − c·v vᵀ, expanding ‖Uᵀ A U‖² − Σ_i ‖U_iᵀ A U_i‖² gives

    2 D / s² = dᵀ M d − 2c · dᵀ G(v) + c² · T(v)
    M = K∘K − Σ_i K_i∘K_i,   G(v) = (Kv)² − Σ_i (K_i v)²,   T(v) = (vᵀKv)² − Σ_i (vᵀK_i v)²

M is formed once per batch; after that an evaluation costs O(n² + n·m·q), since K_i v = U_i (U_iᵀ v).
"""

from __future__ import annotations

import threading
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from stablenet.errors import UserError
from stablenet.registry import unknown_name

Form = Literal["paper", "covariance"]


class WeightMeasure(NamedTuple):
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


# Rows whose products are held at once: bounds the extra memory at ROWS_AT_ONCE × m·q numbers.
ROWS_AT_ONCE = 16_384


class DirectBlocks:
    """D(w) = ½ Σ_ab Σ_ab² over the columns a, b that have nothing in common, and its gradient, from Σ itself.

    With columns in blocks that is Σ_{i<j} ‖Σ_ij‖²_F, and the blocks may differ in width: a one-hot category, or a
    feature with all its functions, is one block. A function of several features belongs to all of theirs.
    rows: (n, k), kept as it is; in the `covariance` form centre it first (see `centre_for`).
    related: (k, k) boolean, symmetric: True for two columns that are not to be made independent.
    Each evaluation costs 2·n·k² multiply-adds.
    """

    def __init__(self, rows: Tensor, related: Tensor, form: Form) -> None:
        self.form = form
        self._rows = rows
        self._related = related

    def value_and_gradient(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """w: (n,).   Returns D, a scalar, and ∂D/∂w (n,)."""
        a = measure_weights(w, self.form)
        mean, sigma = self._gather(a)
        off = sigma.masked_fill_(self._related, 0.0)
        grad_d, products = self._pull(off, off @ mean)
        value = 0.5 * off.square().sum()
        return value, pull_back(a, a.s * grad_d, a.s * (products * (-2 * a.c)), self.form)

    def _gather(self, a: WeightMeasure) -> tuple[Tensor, Tensor]:
        """μ (k,) and Σ (k, k): what an evaluation needs of all rows first."""
        mean = self._rows.T @ a.v
        return mean, weighted_covariance(self._rows, a, mean)

    def _pull(self, off: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
        """xᵀ M x and xᵀ v of every row x, each (n,).   off: M (k, k).   vector: v (k,)."""
        return quadratic_forms(self._rows, off), self._rows @ vector


class DirectPairs(DirectBlocks):
    """D(w) over feature pairs (Eq. 7, learning_weight) and its gradient: blocks of q functions each.

    u: (n, m, q).   Each evaluation costs 2·n·(m·q)² multiply-adds.
    """

    def __init__(self, u: Tensor, form: Form) -> None:
        n, m, q = u.shape
        blocks = torch.arange(m, device=u.device).repeat_interleave(q)
        super().__init__(centre_for(form, u).reshape(n, -1), blocks[:, None] == blocks, form)


class DirectSamePairs:
    """Σ_a Σ_{i≠j} cov(u_ia, u_ja)² and its gradient: functions of the same number only, each ordered pair counted.

    The q matrices of m² numbers are formed at once, from products of the size of u: for at most `ROWS_AT_ONCE` rows.
    u: (n, m, q).   Each evaluation costs 2·n·m²·q multiply-adds.
    """

    def __init__(self, u: Tensor, form: Form) -> None:
        self.form = form
        self._rows = centre_for(form, u).permute(2, 0, 1).contiguous()  # (q, n, m)

    def value_and_gradient(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """w: (n,).   Returns the value, a scalar, and its gradient (n,)."""
        a = measure_weights(w, self.form)
        mean = a.v @ self._rows  # (q, m)
        outer = mean.unsqueeze(2) * mean.unsqueeze(1)
        off = torch.baddbmm(outer, (self._rows * a.d[:, None]).mT, self._rows, beta=-a.c * a.s, alpha=a.s)
        off.diagonal(dim1=1, dim2=2).zero_()
        grad_d = (self._rows @ off).mul_(self._rows).sum((0, 2))
        grad_v = (self._rows @ (off @ mean.unsqueeze(2))).sum((0, 2))
        return off.square().sum(), pull_back(a, (2 * a.s) * grad_d, (-4 * a.c * a.s) * grad_v, self.form)


class DirectLabelPairs:
    """D_y(w) = Σ_i ‖U_iᵀ A Y‖²_F over pairs of a feature and the label, and its gradient.

    u: (n, m, q).   y: (n, C) label columns.   Each evaluation costs 2·n·m·q·C multiply-adds.
    """

    def __init__(self, u: Tensor, y: Tensor, form: Form) -> None:
        self.form = form
        self._rows = centre_for(form, u).reshape(u.shape[0], -1)
        self._labels = centre_for(form, y)

    def value_and_gradient(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """w: (n,).   Returns D_y, a scalar, and ∂D_y/∂w (n,)."""
        a = measure_weights(w, self.form)
        mean_u, mean_y = self._rows.T @ a.v, self._labels.T @ a.v
        cross = self._rows.T @ (a.d[:, None] * self._labels) - a.c * torch.outer(mean_u, mean_y)
        cross = a.s * cross
        pulled = self._rows @ cross
        grad_d = 2 * (pulled * self._labels).sum(1)
        grad_v = -2 * a.c * (pulled @ mean_y + self._labels @ (cross.T @ mean_u))
        return cross.square().sum(), pull_back(a, a.s * grad_d, a.s * grad_v, self.form)


@torch.no_grad()
def quadratic_forms(rows: Tensor, matrix: Tensor) -> Tensor:
    """xᵀ M x for every row x.   rows: (n, k).   matrix: (k, k).   Returns (n,).

    One buffer serves all parts: fresh ones, with the small results between them, leave holes in the heap that grew to
    the size of rows itself for a million of them.
    """
    result = rows.new_empty(len(rows))
    buffer = rows.new_empty(min(len(rows), ROWS_AT_ONCE), rows.shape[1])
    for part, sums in zip(rows.split(ROWS_AT_ONCE), result.split(ROWS_AT_ONCE), strict=True):
        product = torch.mm(part, matrix, out=buffer[: len(part)]).mul_(part)
        torch.sum(product, 1, out=sums)
    return result


def weighted_covariance(rows: Tensor, a: WeightMeasure, mean: Tensor) -> Tensor:
    """Σ = s·(Uᵀ diag(d) U − c·μ μᵀ) with μ = Uᵀv.   rows: (n, k).   mean: (k,).   Returns (k, k)."""
    total = torch.zeros(rows.shape[1], rows.shape[1], dtype=rows.dtype, device=rows.device)
    for part, d in zip(rows.split(ROWS_AT_ONCE), a.d.split(ROWS_AT_ONCE), strict=True):
        total.addmm_((part * d[:, None]).T, part)
    return total.sub_(torch.outer(mean, mean), alpha=a.c).mul_(a.s)


# Up to this many functions, Σ_i K_i∘K_i is cheapest as q(q+1)/2 full-speed matrix products; beyond it (where
# their number would grow as q²), forming each small K_i is: linear in q, but bound by memory traffic.
PRODUCTS_UP_TO = 8
FEATURES_AT_ONCE = 32
# Numbers of u that an evaluation works on at a time: each is read four times, so they had better stay in the cache.
NUMBERS_AT_ONCE = 2**19 + 2**18
# Of u, from which on three eighths fewer multiplications are worth more launches; and the rows of a strip.
LEAST_FOR_STRIPS, STRIP = 2**19, 64


class FeatureSums(NamedTuple):
    """What one evaluation finds out about some features first.

    s: (m·q,), U_iᵀ v.   norms: (m,), vᵀ K_i v.   total, squares: (n,), Σ_i K_i v and Σ_i (K_i v)².
    t: (m, n), K_i v itself, where it had to be formed.
    """

    s: Tensor
    norms: Tensor
    total: Tensor
    squares: Tensor
    t: Tensor | None


class FeatureGroup:
    """Some of the features, few enough to stay in the cache.   blocks: (m, q, n)."""

    def __init__(self, blocks: Tensor) -> None:
        self.m, self.q, self.n = blocks.shape
        self._blocks, self._flat = blocks, blocks.view(-1, self.n)
        # With one function per feature all sums are matrix–vector products, and nothing of size (m, n) is written.
        self._squared = self._flat.square() if self.q == 1 else None

    def sums(self, v: Tensor) -> FeatureSums:
        s = self._flat @ v
        squared = s.square()
        if self._squared is not None:
            return FeatureSums(s, squared, self._flat.T @ s, self._squared.T @ squared, None)
        norms = squared.view(self.m, self.q).sum(1)
        t = torch.bmm(s.view(self.m, 1, self.q), self._blocks).squeeze(1)
        return FeatureSums(s, norms, t.sum(0), t.square().sum(0), t)

    def slope(self, own: FeatureSums, d: Tensor, total: Tensor, norm: Tensor, c: float) -> Tensor:
        """Σ_i K_i (d∘(Kv − K_i v)) − c·Σ_i (vᵀKv − vᵀK_i v)·K_i v over these features, (n,)."""
        if self._squared is not None:
            h = self._flat @ (d * total) - own.s * (self._squared @ d)
        else:
            assert own.t is not None
            h = torch.linalg.vecdot(self._blocks, (d * (total - own.t)).unsqueeze(1)).view(-1)
        rest = (norm - own.norms).unsqueeze(1).expand(self.m, self.q).reshape(-1)
        return self._flat.T @ torch.addcmul(h, own.s, rest, value=-c)


class GramPairs:
    """D(w) over feature pairs and its gradient, in the Gram form.   u: (n, m, q).   dtype: to work in; None for u's."""

    def __init__(self, u: Tensor, form: Form, dtype: torch.dtype | None = None) -> None:
        self.form = form
        n, m, q = u.shape
        u = u if dtype is None or form == "paper" else u.to(dtype)
        blocks = torch.empty(m, q, n, dtype=dtype or u.dtype, device=u.device)
        blocks.copy_(centre_for(form, u).permute(1, 2, 0))  # in one step with the conversion of a form without centring
        flat = blocks.view(-1, n)
        products = SymmetricProducts(blocks)
        products.add(flat)
        self._pairs = products.total().square_().sub_(sum_of_squared_grams(blocks))  # M
        self._groups = [FeatureGroup(part) for part in blocks.split(max(1, NUMBERS_AT_ONCE // (q * n)))]

    def value_and_gradient(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """w: (n,).   Returns D, a scalar, and ∂D/∂w (n,)."""
        a = measure_weights(w, self.form)
        sums = [group.sums(a.v) for group in self._groups]
        total, norm = add([part.total for part in sums]), add([part.norms.sum() for part in sums])
        norm_squares = add([part.norms @ part.norms for part in sums])
        g = total.square() - add([part.squares for part in sums])
        m_d, c_g = self._pairs @ a.d, a.c * g
        value = a.d @ torch.sub(m_d, c_g, alpha=2) + a.c**2 * (norm.square() - norm_squares)
        slopes = [group.slope(own, a.d, total, norm, a.c) for group, own in zip(self._groups, sums, strict=True)]
        half = 0.5 * a.s**2
        return half * value, pull_back(a, (2 * half) * (m_d - c_g), (-4 * a.c * half) * add(slopes), self.form)


def add(parts: list[Tensor]) -> Tensor:
    """The sum of one or more tensors."""
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


class GramLabelPairs:
    """D_y(w) = Σ_i ‖U_iᵀ A Y‖²_F over pairs of a feature and the label, in the Gram form.

    u: (n, m, q).   label_gram: (n, n), Y Yᵀ; for hard labels 1 where two samples share their label.
    """

    def __init__(self, u: Tensor, label_gram: Tensor, form: Form) -> None:
        self.form = form
        rows = centre_for(form, u).reshape(u.shape[0], -1)
        self._k = rows @ rows.T
        self._l = centre_gram(label_gram) if form == "covariance" else label_gram
        self._kl = self._k * self._l

    def value_and_gradient(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """w: (n,).   Returns D_y, a scalar, and ∂D_y/∂w (n,)."""
        a = measure_weights(w, self.form)
        k_v, l_v, kl_d = self._k @ a.v, self._l @ a.v, self._kl @ a.d
        v_k_v, v_l_v = a.v @ k_v, a.v @ l_v
        value = a.d @ (kl_d - 2 * a.c * k_v * l_v) + a.c**2 * v_k_v * v_l_v
        grad_d = 2 * (kl_d - a.c * k_v * l_v)
        grad_v = 2 * a.c * (a.c * (v_l_v * k_v + v_k_v * l_v) - self._k @ (a.d * l_v) - self._l @ (a.d * k_v))
        return a.s**2 * value, pull_back(a, a.s**2 * grad_d, a.s**2 * grad_v, self.form)


class SymmetricProducts:
    """Sums of XᵀX for X (k, n). Of large ones on the processor only the upper triangle is computed, in strips."""

    def __init__(self, like: Tensor) -> None:
        n = like.shape[-1]
        self._sum = torch.zeros(n, n, dtype=like.dtype, device=like.device)
        self._strip = STRIP if like.device.type == "cpu" and like.numel() >= LEAST_FOR_STRIPS else n

    def add(self, rows: Tensor, times: float = 1) -> None:
        """rows: (k, n)."""
        for start in range(0, len(self._sum), self._strip):
            end = start + self._strip
            self._sum[start:end, start:].addmm_(rows[:, start:end].T, rows[:, start:], alpha=times)

    def total(self) -> Tensor:
        """The sum, (n, n)."""
        return self._sum if self._strip >= len(self._sum) else self._sum.triu() + self._sum.triu(1).T


class Room(threading.local):
    """Memory for products that a call needs only for a moment.

    On the processor it is kept for the next call, up to `MOST_KEPT` bytes in each thread: memory fresh from the system
    costs a sixth of a call of preset `paper` at n = 256, m = 512, q = 5, and more where the system is short of it.
    """

    MOST_KEPT = 2**23

    def __init__(self) -> None:
        self._kept: dict[torch.dtype, Tensor] = {}

    def room(self, like: Tensor, q: int) -> Tensor:
        """Uninitialised (m, q, n), of the type and on the device of `like` (m, …, n); the same memory each time."""
        m, _, n = like.shape
        size = m * q * n
        if like.device.type != "cpu" or size * like.itemsize > self.MOST_KEPT:
            return like.new_empty(m, q, n)
        kept = self._kept.get(like.dtype)
        if kept is None or len(kept) < size:
            with torch.inference_mode(False):  # which would forbid its later use outside
                kept = self._kept[like.dtype] = torch.empty(size, dtype=like.dtype)
        return kept[:size].view(m, q, n)


_PRODUCTS = Room()


def sum_of_squared_grams(blocks: Tensor) -> Tensor:
    """Σ_i K_i∘K_i.   blocks: (m, q, n).   Returns (n, n)."""
    _, q, n = blocks.shape
    if q <= PRODUCTS_UP_TO:
        products = SymmetricProducts(blocks)
        products.add(torch.mul(blocks, blocks, out=_PRODUCTS.room(blocks, q)).view(-1, n))
        for a in range(q - 1):
            room = _PRODUCTS.room(blocks, q - 1 - a)
            products.add(torch.mul(blocks[:, a : a + 1], blocks[:, a + 1 :], out=room).view(-1, n), times=2)
        return products.total()
    total = torch.zeros(n, n, dtype=blocks.dtype, device=blocks.device)
    for part in blocks.split(FEATURES_AT_ONCE):
        total += torch.bmm(part.transpose(1, 2), part).square_().sum(0)
    return total


def centre_gram(gram: Tensor) -> Tensor:
    """The Gram matrix of the centred columns, H G H with H = I − 11ᵀ/n.   gram: (n, n)."""
    means = gram.mean(0)
    return gram - means - means[:, None] + means.mean()


def label_gram_of(labels: Tensor, dtype: torch.dtype) -> Tensor:
    """Y Yᵀ of integer labels (n,) or of label columns (n, C)."""
    if labels.ndim == 1:
        return (labels[:, None] == labels[None, :]).to(dtype)
    columns = labels.to(dtype)
    return columns @ columns.T
