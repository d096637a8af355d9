"""A context that the user names: does it go with the label, and do the weights find the samples where it does not?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stablenet.diagnose.telling import PERMUTATIONS, measure_telling, one_hot
from stablenet.independence.features import ColumnFeatures, squared_norms
from stablenet.independence.null import permutation_p_values
from stablenet.weighting import effective_sample_size


@dataclass(frozen=True)
class ContextFindings:
    """names: of the contexts that occur.   seen: share of the context that the features tell.
    v_before, v_after: Cramér's V of context and label, corrected for chance, without and with the weights.
    p_value: of V without weights, by permutation.
    minority: share of samples whose context is not the most frequent one of their class.
    weight_minority, weight_majority: their mean weights relative to the mean of their class; NaN for none.
    before, after: (contexts, classes) each class's shares of the contexts, without and with the weights.
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
        seen=measure_telling(features, where).share,
        v_before=cramer_v(before.numpy(), len(y)),
        v_after=cramer_v(after.numpy(), effective),
        p_value=permute(where, what),
        minority=float(off.double().mean()),
        weight_minority=float(relative[off].mean()),
        weight_majority=float(relative[~off].mean()),
        before=(before / before.sum(0)).numpy(),
        after=(after / after.sum(0)).numpy(),
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
