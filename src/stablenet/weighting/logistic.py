"""The regression behind the offsets: leading components of features, and cross-fitted logistic regression."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from stablenet.weighting import distributed
from stablenet.weighting.chunks import Chunk, ExactSum, Moments, Rows, by_device, column_moments
from stablenet.weighting.fourier import standardize

LEAST = 1e-5  # of all variance: a component with less is rounding
ROWS_AT_ONCE = 4096


def leading_components(z: Tensor, count: int) -> Tensor:
    """The `count` leading components of features z (n, m), their squares and pairwise products, all standardized.

    Squares and products let a linear model draw ellipses around groups of samples, as domains are.
    Returns (n, k + k·(k + 1)/2), k at most n and m; components without variance are zeros.
    """
    z = standardize(z)
    tall = len(z) >= z.shape[1]
    variances, vectors = torch.linalg.eigh((z.T @ z if tall else z @ z.T) / len(z))  # rising; the smaller matrix
    chosen = _choose(variances, count)
    return _with_products(z @ vectors[:, chosen] if tall else vectors[:, chosen], chosen, variances)


def stream_components(rows: Rows, count: int) -> Tensor:
    """As `leading_components`, of rows in chunks: their covariance first, then their projections. Needs m × m numbers.

    Returns those of all n samples, in every process.
    """
    moments = column_moments(rows, (parts for _, parts in rows.blocks(ROWS_AT_ONCE)), rows.width)
    mean, slope = standardizing(moments)
    size = rows.width
    total = ExactSum((size, size), mean.dtype, rows, float(rows.total))
    for _, parts in rows.blocks(ROWS_AT_ONCE):
        covariance = mean.new_zeros(size, size)
        for part in parts:
            z = (part - mean).mul_(slope)
            covariance.addmm_(z.T, z)
        total.add(covariance)
    variances, vectors = torch.linalg.eigh(total.result() / rows.total)
    chosen = _choose(variances, count)
    scores = mean.new_zeros(rows.total, len(chosen))
    for chunk, parts in rows.blocks(ROWS_AT_ONCE):
        found = [(part - mean).mul_(slope) @ vectors[:, chosen] for part in parts]
        scores[chunk.start : chunk.stop] = torch.cat(found)
    if rows.shared:
        distributed.sum_in_place(scores)  # every row is some process's, and zero elsewhere
    return _with_products(scores, chosen, variances)


def standardizing(moments: Moments) -> tuple[Tensor, Tensor]:
    """Mean (m,) and factor (m,) that `standardize` columns, in float32; constant columns have the factor 0."""
    varies = moments.spread > 8 * torch.finfo(torch.float32).eps * moments.peak
    slope = varies / torch.where(varies, moments.spread, 1.0)
    return moments.mean.float(), slope.float()


def _choose(variances: Tensor, count: int) -> Tensor:
    """Numbers of the largest variances (given rising), the largest first."""
    return torch.arange(len(variances) - 1, max(-1, len(variances) - 1 - count), -1, device=variances.device)


def _with_products(scores: Tensor, chosen: Tensor, variances: Tensor) -> Tensor:
    leading = standardize(scores) * (variances[chosen] > LEAST * variances.sum())
    first, second = torch.triu_indices(len(chosen), len(chosen), device=scores.device)
    return torch.cat([leading, standardize(leading[:, first] * leading[:, second])], 1)


FOLDS = 5
RIDGES = (1.0, 0.1, 0.01, 0.001, 0.0001)  # the mean loss is of order one, features are standardized
STEPS = 100  # of L-BFGS for every ridge, starting from the one before
LARGEST_LOSS = 2.0**20  # of a regression; beyond it, numbers count as not finite

# Logits of all folds that are held at once, by kind of device: the cache of a processor, the cores of a GPU.
LOGITS_AT_ONCE = {"cpu": 2**20, "cuda": 2**26}
BUFFERS = 6  # of that size


@dataclass(frozen=True)
class Regressors:
    """Standardized regressors of n samples, of which a process reads those of its own chunks.

    rows: as they are stored.   transform: standardizes a block; None where they are so.   size: of a block.
    peak: the largest absolute value there may be.
    """

    rows: Rows
    size: int
    peak: float
    transform: Callable[[Tensor], Tensor] | None = None

    def chunks(self) -> Iterator[tuple[Chunk, Iterator[tuple[slice, Tensor]]]]:
        """For every chunk, the places and regressors (b, m) of its blocks."""
        for chunk in self.rows.chunks:
            starts = range(chunk.start, chunk.stop, self.size)
            yield chunk, (self._read(chunk, start) for start in starts)

    def _read(self, chunk: Chunk, start: int) -> tuple[slice, Tensor]:
        stop = min(start + self.size, chunk.stop)
        z = self.rows.read(chunk, start, stop)
        return slice(start, stop), z if self.transform is None else self.transform(z)


def whole_regressors(z: Tensor) -> Regressors:
    """Regressors (n, m) in one piece."""
    return Regressors(Rows(z), len(z), 1.0)


def block_rows(classes: int, device: torch.device) -> int:
    """Rows of a block."""
    return max(1, by_device(LOGITS_AT_ONCE, device) // (FOLDS * classes))


@dataclass(frozen=True)
class Regression:
    """One regression per fold, which was not shown that fold.

    slopes: (k, m, C).   levels: (k, 1, C).   fold: (n,) from 0.   loss: on held-out labels.   ridge: the chosen one.
    """

    slopes: Tensor
    levels: Tensor
    fold: Tensor
    loss: float
    ridge: float

    def predict(self, z: Tensor, fold: Tensor) -> Tensor:
        """Log-probabilities (b, C) of samples with regressors z (b, m) and these folds (b,)."""
        return predict(z, fold, self.slopes, self.levels)


def predict(z: Tensor, fold: Tensor, slopes: Tensor, levels: Tensor) -> Tensor:
    """As `Regression.predict`."""
    with torch.autocast(z.device.type, enabled=False):
        rows = (z @ slopes + levels)[fold, torch.arange(len(z), device=z.device)]
        return functional.log_softmax(rows, 1)


def cross_fit(regressors: Regressors, y: Tensor, classes: int, fold: Tensor) -> Regression:
    """Regressions for every sample that were not shown its fold, with the ridge that predicts held-out labels best.

    y: (n,).   fold: (n,) from 0. From the largest ridge down until held-out labels are predicted worse again.
    """
    shown = (fold != torch.arange(int(fold.max()) + 1, device=fold.device)[:, None]).to(regressors.rows.dtype)
    shares = shown / shown.sum(1, keepdim=True).clamp_min(1)
    slopes = shares.new_zeros(len(shown), regressors.rows.width, classes)
    levels = shares.new_zeros(len(shown), 1, classes)
    best: Regression | None = None
    for ridge in RIDGES:
        fit_logistic(regressors, y, shares, ridge, slopes, levels)
        found = Regression(slopes.clone(), levels.clone(), fold, 0.0, ridge)
        loss = held_out_loss(regressors, y, found)
        if best is not None and loss >= best.loss:
            break
        best = Regression(found.slopes, found.levels, fold, loss, ridge)
    assert best is not None
    return best


def held_out_loss(regressors: Regressors, y: Tensor, regression: Regression) -> float:
    """The mean log-loss of all samples."""
    rows = regressors.rows
    total = ExactSum((), regression.slopes.dtype, rows, LARGEST_LOSS)
    for chunk, blocks in regressors.chunks():
        losses = []
        for places, z in blocks:
            predicted = regression.predict(z, regression.fold[places])
            losses.append(functional.nll_loss(predicted, y[places]) * (len(z) / len(chunk)))
        total.add(torch.stack(losses).sum() * (len(chunk) / rows.total))
    return float(total.result())


def fit_logistic(
    regressors: Regressors, y: Tensor, shares: Tensor, ridge: float, slopes: Tensor, levels: Tensor
) -> None:
    """min over every problem k of Σ_i shares_ki·CE_i + ridge·‖slopes_k‖², all k at once, in place.

    y: (n,).   shares: (k, n).   slopes: (k, m, C) and levels: (k, 1, C), from where they are.
    """
    optimizer = torch.optim.LBFGS([slopes, levels], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        by_slope, by_level, misfit = add_up(regressors, y, shares, slopes, levels)
        slopes.grad = by_slope + 2 * ridge * slopes
        levels.grad = by_level
        return ridge * slopes.square().sum() - misfit

    optimizer.step(loss)
    slopes.grad = levels.grad = None


def add_up(
    regressors: Regressors, y: Tensor, shares: Tensor, slopes: Tensor, levels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss's slopes in `slopes` and `levels`, and Σ shares·log p: one pass over all samples."""
    bounds = (regressors.peak, 1.0, LARGEST_LOSS)
    totals = [
        ExactSum(tuple(shape), slopes.dtype, regressors.rows, bound)
        for shape, bound in zip((slopes.shape, levels.shape, ()), bounds, strict=True)
    ]
    for _, blocks in regressors.chunks():
        sums: list[Tensor] = []
        for places, z in blocks:
            predicted = functional.log_softmax(z @ slopes + levels, 2)
            truth = functional.one_hot(y[places], slopes.shape[2]).to(z)
            own = shares[:, places, None]
            misses = predicted.exp().sub_(truth).mul_(own)  # the slope of the loss in the logits
            found = [z.T @ misses, misses.sum(1, keepdim=True), (own * truth).mul_(predicted).sum()]
            sums = found if not sums else [before.add_(new) for before, new in zip(sums, found, strict=True)]
        for total, part in zip(totals, sums, strict=True):
            total.add(part)
    by_slope, by_level, misfit = (total.result() for total in totals)
    return by_slope, by_level, misfit


def deal_folds(labels: Tensor, seed: int, folds: int = FOLDS) -> Tensor:
    """(n,) every sample's fold, drawn; the samples of a class are spread evenly."""
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    fold = torch.empty_like(labels)
    fold[by_class] = torch.arange(len(labels), device=labels.device) % min(folds, len(labels))
    return fold
