"""The linear ancestors' weights: DWR, SRDO, CRBR, each from its own objective.

All take the design (n, d), its blocks and base weights s (n,) with mean one, and return factors w (n,), non-negative,
of mean one under s, like `weights.solve_table`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from sklearn.neural_network import MLPClassifier
from torch import Tensor
from torch.nn.functional import cross_entropy

from stablenet.tables.encode import Array, Encoding

ADAM_RATE = 0.01


def decorrelate_columns(design: Array, encoding: Encoding, base: Array, *, steps: int) -> Array:
    """DWR: small weighted covariances of all columns, W = ω².

    (2000/p)·Σ_i √(Σ_j cov_W(x_i, x_j)²) + ½·(ΣW − n)² + 5e-5·ΣW², j over the columns of other blocks: the published
    code's objective and constants, its Adam rate, by default its number of steps.
    """
    x, s = _as_tensor(design), _as_tensor(base)
    n, p = x.shape
    apart = _different_blocks(encoding)

    def loss(root: Tensor) -> Tensor:
        weight = root.square()
        share = s * weight / n
        mean = x.T @ share
        covariance = ((x.T * share) @ x - torch.outer(mean, mean)) * apart
        # 1e-10: the root's slope at zero.
        spread = (covariance.square().sum(1) + 1e-10).sqrt().sum()
        total = (s * weight).sum()
        return 2000 / p * spread + 0.5 * (total - n).square() + 5e-5 * (s * weight.square()).sum()

    root = torch.ones(n, requires_grad=True)
    _descend(lambda: loss(root), [root], steps)
    return _normalise(root.detach().square(), s)


def estimate_density_ratio(
    design: Array, encoding: Encoding, base: Array, *, seed: int, hidden: tuple[int, ...], steps: int
) -> Array:
    """SRDO: the density of the table with shuffled columns over that of the table, from a classifier.

    Every block is permuted on its own (drawn with the base weights when they differ), a network tells the shuffled
    rows from the real ones, and w = P(shuffled)/P(real) at the real rows.
    """
    generator = np.random.default_rng(seed)
    n = len(design)
    drawn = design.copy()
    for block in encoding.blocks:
        equal = bool((base == base[0]).all())
        rows = generator.permutation(n) if equal else generator.choice(n, n, p=base / base.sum())
        drawn[:, block.columns] = design[rows, block.columns]
    classifier = MLPClassifier(hidden_layer_sizes=hidden, max_iter=steps, random_state=seed)
    real = np.repeat([1, 0], n)
    classifier.fit(np.concatenate([design, drawn]), real, sample_weight=np.concatenate([base, np.ones(n)]))
    probability = classifier.predict_proba(design)[:, 1].clip(1e-6, 1 - 1e-6)
    return _normalise(_as_tensor(1 / probability - 1), _as_tensor(base))


def balance_treatments(
    design: Array, encoding: Encoding, base: Array, classes: Array, *, steps: int, balance: float, decay: float
) -> Array:
    """CRBR: weights that balance the other columns between the rows above and below each column's median, learned
    together with a logistic regression.

    Σ_i W_i·CE_i/n + balance·Σ_j ‖mean of x₋ⱼ over the treated − over the controls‖² + decay·mean(W²) + (ΣW/n − 1)².
    classes: (n,) integer labels.
    """
    x, s, y = _as_tensor(design), _as_tensor(base), torch.from_numpy(classes)
    n, p = x.shape
    treated = (x > x.quantile(0.5, 0)).to(x.dtype)  # (n, p); for a rare one-hot column, the rows that have it
    apart = _different_blocks(encoding)
    root = torch.ones(n, requires_grad=True)
    model = torch.nn.Linear(p, int(y.max()) + 1)
    with torch.no_grad():  # a start that no generator's state can change
        model.weight.zero_()
        model.bias.zero_()

    def loss() -> Tensor:
        weight = s * root.square()
        fit = (weight * cross_entropy(model(x), y, reduction="none")).sum() / n
        gap = _weighted_means(x, treated, weight) - _weighted_means(x, 1 - treated, weight)
        mass = (weight.sum() / n - 1).square() + decay * (s * root.pow(4)).sum() / n
        return fit + balance * (gap * apart).square().sum() / p + mass

    _descend(loss, [root, *model.parameters()], steps)
    return _normalise(root.detach().square(), s)


def _weighted_means(x: Tensor, group: Tensor, weight: Tensor) -> Tensor:
    """Means of x's columns in each group.   x, group: (n, p).   Returns (p groups, p columns); 0 for empty groups."""
    share = group * weight[:, None]
    return (share.T @ x) / share.sum(0).clamp_min(1e-6)[:, None]


def _different_blocks(encoding: Encoding) -> Tensor:
    owner = torch.repeat_interleave(torch.tensor([block.width for block in encoding.blocks]))
    return (owner[:, None] != owner).to(torch.float32)


def _descend(loss: Callable[[], Tensor], parameters: list[Tensor], steps: int) -> None:
    optimiser = torch.optim.Adam(parameters, lr=ADAM_RATE)
    for _ in range(steps):
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()


def _as_tensor(values: Array) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float32)


def _normalise(weight: Tensor, base: Tensor) -> Array:
    """Mean one under the base; all ones where nothing is left."""
    total = float((base * weight).sum() / base.sum())
    found = weight / total if total > 0 else torch.ones_like(weight)
    return np.asarray(found.numpy(), dtype=np.float64)
