"""How much of the label the features tell, against what they tell of permuted labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stablenet.independence.features import ColumnFeatures, squared_norms
from stablenet.independence.null import null_mean, permutation_p_values
from stablenet.weighting import standardize

MOST_AXES = 64  # principal axes that may tell the label; more would only tell noise
ROWS_PER_AXIS = 10
PERMUTATIONS = 199
LEFT_OUT = 1e-4  # share of the variance that the axes of the weighting may miss


@dataclass(frozen=True)
class Telling:
    """Shares of the variance of the label that a linear function of the features explains; 0 nothing, 1 everything.

    share, classes: less what permuted labels give on average.   raw: (C,) as measured.   permuted: its mean under
    permuted labels, the same for all classes.   p_value, class_p: by permutation, see `largest_p_values`.
    scores: (n, C) how much each sample looks like each class.
    """

    share: float
    p_value: float
    classes: tuple[float, ...]
    class_p: tuple[float, ...]
    raw: tuple[float, ...]
    permuted: float
    scores: Tensor


def measure_telling(features: Tensor, columns: Tensor, seed: int = 0) -> Telling:
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
    return Telling(
        share=_correct(float(whole), permuted),
        p_value=float(p_value),
        classes=tuple(_correct(value, permuted) for value in raw[0].tolist()),
        class_p=tuple(class_p.tolist()),
        raw=tuple(raw[0].tolist()),
        permuted=permuted,
        scores=(white @ (white.T @ (centred / size.sqrt()))).float(),
    )


def largest_p_values(raw: Tensor, q: ColumnFeatures, each: ColumnFeatures, generator: torch.Generator) -> Tensor:
    """p-values (C,) of all classes at once: how often permuted labels tell more of their best-told class.

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

    A sum of squared covariances with the label does not see the rotation, so the weights can be solved on these.
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
