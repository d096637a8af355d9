"""What a diagnosis measures: how well features predict the label, and how much of that weights could remove.

In order: the prediction, its relation to a named context, and how many effective samples the weights would cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stablenet.independence.column_features import ColumnFeatures, squared_norms
from stablenet.independence.testing import null_mean, permutation_p_values
from stablenet.weighting import WholeSet, effective_sample_size, recommended, standardize
from stablenet.weighting.dataset import PLACES

MOST_AXES = 64  # principal axes that may predict the label; more would only add noise
ROWS_PER_AXIS = 10
PERMUTATIONS = 199
LEFT_OUT = 1e-4  # share of the variance that the axes may miss


@dataclass(frozen=True)
class Explained:
    """Shares of the variance of the label that a linear function of the features explains; 0 nothing, 1 everything.

    share, classes: less what permuted labels give on average.   raw: (C,) as measured.   permuted: its mean under
    permuted labels, the same for all classes.   p_value, class_p: by permutation, see `largest_p_values`.
    scores: (n, C) what the features add to the chance of each class: a linear fit of it less its share, in −1 … 1.
    """

    share: float
    p_value: float
    classes: tuple[float, ...]
    class_p: tuple[float, ...]
    raw: tuple[float, ...]
    permuted: float
    scores: Tensor


def measure_explained(features: Tensor, columns: Tensor, seed: int = 0) -> Explained:
    """features: (n, m).   columns: (n, C) one-hot labels (or contexts), every column with both values."""
    n = len(features)
    axes = principal_axes(features)
    count = max(1, min(MOST_AXES, n // ROWS_PER_AXIS, axes.shape[1]))
    white = axes[:, :count] / axes[:, :count].norm(dim=0)
    centred = columns.double() - columns.double().mean(0)
    size = centred.square().sum(0)
    q = ColumnFeatures(white.unsqueeze(1), float(n), weighted=False)
    each = ColumnFeatures((centred / size.sqrt()).unsqueeze(2), float(n), weighted=False)
    joint = ColumnFeatures((centred / size.sum().sqrt()).unsqueeze(1), float(n), weighted=False)
    generator = torch.Generator().manual_seed(seed)
    raw, whole = squared_norms(q.x, each.x), squared_norms(q.x, joint.x)
    p_value = permutation_p_values(whole, q, joint, PERMUTATIONS, generator)
    class_p = largest_p_values(raw[0], q, each, generator)
    permuted = float(null_mean(q, joint))
    return Explained(
        share=_correct(float(whole), permuted),
        p_value=float(p_value),
        classes=tuple(_correct(value, permuted) for value in raw[0].tolist()),
        class_p=tuple(class_p.tolist()),
        raw=tuple(raw[0].tolist()),
        permuted=permuted,
        scores=(white @ (white.T @ centred)).float(),
    )


def largest_p_values(raw: Tensor, q: ColumnFeatures, each: ColumnFeatures, generator: torch.Generator) -> Tensor:
    """p-values (C,) of all classes at once: how often the best-predicted class of permuted labels is predicted better.

    So the number of classes is accounted for without a price that many classes could not pay (Westfall and Young).
    """
    reached = torch.ones_like(raw)
    for _ in range(PERMUTATIONS):
        order = torch.randperm(len(each.x), generator=generator)
        reached += squared_norms(q.x, each.x[order]).max() >= raw
    return reached / (PERMUTATIONS + 1)


def _correct(share: float, permuted: float) -> float:
    """As R² is adjusted: zero for what permuted labels give on average, one for everything."""
    return max(0.0, (share - permuted) / (1 - permuted)) if permuted < 1 else 0.0


def principal_axes(features: Tensor) -> Tensor:
    """Standardised features (n, m) turned into principal axes (n, k), largest variance first; tiny ones left out.

    A sum of squared covariances with the label is the same for both.
    """
    z = standardize(features.double())
    z = z - z.mean(0)
    values, vectors = torch.linalg.eigh(z.T @ z)
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    missed = 1 - values.cumsum(0) / values.sum().clamp_min(torch.finfo(values.dtype).tiny)
    kept = int((missed > LEFT_OUT).sum()) + 1
    axes: Tensor = z @ vectors[:, :kept]
    return axes


def one_hot(codes: Tensor) -> Tensor:
    """(n,) int64 to (n, C) of the values that occur, in their order."""
    _, position = codes.unique(return_inverse=True)
    return torch.nn.functional.one_hot(position).double()


@dataclass(frozen=True)
class ContextFindings:
    """names: of the contexts that occur.   seen: share of the context that the features predict.
    v_before, v_after: Cramér's V of context and label, corrected for chance, without and with the weights.
    p_value: of V without weights, by permutation.
    minority: share of samples whose context is not the most frequent one of their class.
    minority_weight: their share of all weight.
    weight_minority, weight_majority: their mean weights relative to the mean of their class; NaN for none.
    before, after: (contexts, classes) each class's shares of the contexts, without and with the weights.
    where: (n,) each sample's position in names.   off: (n,) bool, whether it lies outside its class's main context.
    """

    names: tuple[str, ...]
    seen: float
    v_before: float
    v_after: float
    p_value: float
    minority: float
    weight_minority: float
    weight_majority: float
    before: NDArray[np.float64]
    after: NDArray[np.float64]
    where: Tensor
    off: Tensor
    minority_weight: float


def study_context(
    names: tuple[str, ...], context: Tensor, y: Tensor, features: Tensor, weights: Tensor
) -> ContextFindings:
    """names: of all contexts.   context, y: (n,) int64.   features: (n, m).   weights: (n,) mean one."""
    where, what = one_hot(context), one_hot(y)
    off = find_minority(where, what)
    relative = weights.double() / (what @ (what.T @ weights.double() / what.sum(0)))
    before, after = where.T @ what, where.T @ (weights.double()[:, None] * what)
    effective = float(effective_sample_size(weights))
    return ContextFindings(
        names=tuple(names[code] for code in context.unique().tolist()),
        seen=measure_explained(features, where).share,
        v_before=cramer_v(before.numpy(), len(y)),
        v_after=cramer_v(after.numpy(), effective),
        p_value=permute(where, what),
        minority=float(off.double().mean()),
        weight_minority=float(relative[off].mean()),
        weight_majority=float(relative[~off].mean()),
        before=(before / before.sum(0)).numpy(),
        after=(after / after.sum(0)).numpy(),
        where=where.argmax(1),
        off=off,
        minority_weight=float(weights[off].sum() / weights.sum()),
    )


def find_minority(where: Tensor, what: Tensor) -> Tensor:
    """(n,) bool: whether a sample's context is not its class's most frequent one.   where, what: one-hot."""
    main = (where.T @ what).argmax(0)  # the most frequent context of every class
    return where.argmax(1) != main[what.argmax(1)]


def cramer_v(counts: NDArray[np.float64], size: float) -> float:
    """Cramér's V of a table of (weighted) counts, less what chance gives in `size` samples (Bergsma, 2013)."""
    counts = counts[counts.sum(1) > 0][:, counts.sum(0) > 0]  # weights may leave nothing of a context
    share = counts / counts.sum()
    expected = np.outer(share.sum(1), share.sum(0))
    squared = float(((share - expected) ** 2 / expected).sum())
    rows, columns = counts.shape
    corrected = max(0.0, squared - (rows - 1) * (columns - 1) / (size - 1))
    few = min(rows - (rows - 1) ** 2 / (size - 1), columns - (columns - 1) ** 2 / (size - 1))
    return min(1.0, float(np.sqrt(corrected / (few - 1)))) if few > 1 else 0.0


def permute(where: Tensor, what: Tensor, seed: int = 0) -> float:
    """p-value of the dependence of two one-hot tables, by permutation of the rows of one."""
    a, b = (ColumnFeatures((t - t.mean(0)).unsqueeze(1), float(len(t)), weighted=False) for t in (where, what))
    generator = torch.Generator().manual_seed(seed)
    return float(permutation_p_values(squared_norms(a.x, b.x), a, b, PERMUTATIONS, generator))


def read_own(scores: Tensor, y: Tensor) -> Tensor:
    """Each sample's score of its own class (n,).   scores: (n, C).   y: (n,) int64."""
    return scores.gather(1, y[:, None]).squeeze(1)


STRENGTHS = PLACES[1:]  # where the weights are looked at on their way from ones


@dataclass(frozen=True)
class Trade:
    """The weights 1 + strength·(w − 1): what they remove and what that costs.

    left: share of the dependence that remains, None where it is unknown.
    ess: effective sample size as a share of the samples; 1 for even weights.
    """

    strength: float
    left: float | None
    ess: float

    @property
    def is_even(self) -> bool:
        """Whether all samples weigh the same."""
        return self.ess > 1 - 1e-6


def weigh_labels(features: Tensor, y: Tensor, *, pretrained: bool, seed: int = 0) -> tuple[list[Trade], Tensor]:
    """The weights (n,) that the preset `recommended` solves for a whole training set, and the way to them.

    features: (n, m), from the first stages of a network or in their place.   y: (n,) int64.
    pretrained: whether they come from a pretrained network, whose penalty is larger. Training leaves the weights of
        such a network even and uses offsets; what is solved here are weights as with `strength=1`, for these features.
    """
    plan = recommended.recommend(pretrained=pretrained, strength=1.0, offset=0.0)
    whole_set = WholeSet(
        plan,
        len(y),
        int(y.max()) + 1,
        preset=recommended.NAME,
        fold_seed=seed,
        overrides={"seed": seed, **plan.overrides},
    )
    whole_set.collect(torch.arange(len(y)), {"features": features}, y)
    whole_set.solve()
    weighting = whole_set.weighting
    assert weighting is not None  # the plan's strength is 1
    trades = []
    for strength in STRENGTHS:
        weighting.set_strength(strength)
        found = weighting.describe()
        left = share_left(found["dependence_before"], found["dependence_after"])
        trades.append(Trade(strength, left, found["ess_ratio"]))
    return trades, weighting.handed


def share_left(before: float, after: float) -> float:
    """Of the dependence; all of none."""
    return after / before if before > 0 else 1.0
