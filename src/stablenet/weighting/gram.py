r"""The statistic from the n × n products of samples: exact, and hundreds of times cheaper inside the solver.

With K_i = U_i U_iᵀ, K = Σ_i K_i and A = diag(d) − c·v vᵀ, expanding ‖Uᵀ A U‖² − Σ_i ‖U_iᵀ A U_i‖² gives

    2 D / s² = dᵀ M d − 2c · dᵀ G(v) + c² · T(v)
    M = K∘K − Σ_i K_i∘K_i,   G(v) = (Kv)² − Σ_i (K_i v)²,   T(v) = (vᵀKv)² − Σ_i (vᵀK_i v)²

M is formed once per batch; after that an evaluation costs O(n² + n·m·q), since K_i v = U_i (U_iᵀ v).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.weighting.statistic import Form, centre_for, measure_weights, pull_back

# Up to this many functions, Σ_i K_i∘K_i is cheapest as q(q+1)/2 full-speed matrix products; beyond it (where
# their number would grow as q²), forming each small K_i is: linear in q, but bound by memory traffic.
PRODUCTS_UP_TO = 8
FEATURES_AT_ONCE = 32
# Numbers of u that an evaluation works on at a time: each is read four times, so they had better stay in the cache.
NUMBERS_AT_ONCE = 2**19 + 2**18
# Of u, from which on three eighths fewer multiplications are worth more launches; and the rows of a strip.
LEAST_FOR_STRIPS, STRIP = 2**19, 64


@dataclass(frozen=True)
class FeatureSums:
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
        rest = norm - own.norms if self.q == 1 else (norm - own.norms).repeat_interleave(self.q)
        return self._flat.T @ torch.addcmul(h, own.s, rest, value=-c)


class GramPairs:
    """D(w) over feature pairs and its gradient, in the Gram form.   u: (n, m, q)."""

    def __init__(self, u: Tensor, form: Form) -> None:
        self.form = form
        n, _, q = u.shape
        blocks = centre_for(form, u).permute(1, 2, 0).contiguous()  # (m, q, n)
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
        m_d = self._pairs @ a.d
        value = a.d @ (m_d - 2 * a.c * g) + a.c**2 * (norm.square() - norm_squares)
        slopes = [group.slope(own, a.d, total, norm, a.c) for group, own in zip(self._groups, sums, strict=True)]
        half = 0.5 * a.s**2
        return half * value, pull_back(a, (2 * half) * (m_d - a.c * g), (-4 * a.c * half) * add(slopes), self.form)


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


def sum_of_squared_grams(blocks: Tensor) -> Tensor:
    """Σ_i K_i∘K_i.   blocks: (m, q, n).   Returns (n, n)."""
    _, q, n = blocks.shape
    if q <= PRODUCTS_UP_TO:
        products = SymmetricProducts(blocks)
        products.add(blocks.square().view(-1, n))
        for a in range(q - 1):
            products.add((blocks[:, a : a + 1] * blocks[:, a + 1 :]).view(-1, n), times=2)
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
