"""Sample weights under which features are independent. Imports torch alone.

In reading order: the mathematics, `fourier` (random Fourier features), `statistic` (the weighted covariance, also
from products of samples) and `dependence` (the public functions); the problem, `settings` (with the presets),
`problem`, `solver` and `totals` (of classes); batch by batch as in the paper, `inputs`, `memory`, `module`, and
`distributed` for several processes; the whole training set of any size, `chunks` (within a memory budget) and
`samples` (what is collected), `dataset` (weights, and what enters the loss) and `streamed`, `offsets` with
`logistic`, `evidence` (whether context and label are correlated) and `recommended` (every rule of that preset); last
`kernels`, the fast paths on CUDA.
"""

from stablenet.weighting.dataset import DatasetWeighting, WholeSet, solve_dataset
from stablenet.weighting.dependence import dependence_matrix, label_dependence, pairwise_dependence
from stablenet.weighting.fourier import random_fourier_features, standardize
from stablenet.weighting.inputs import pool_maps
from stablenet.weighting.module import StableWeighting
from stablenet.weighting.offsets import DatasetOffsets, Offsets, solve_offsets
from stablenet.weighting.recommended import WholeSetPlan, context_use, recommend
from stablenet.weighting.settings import PRESETS, WeightingSettings
from stablenet.weighting.solver import Solution, effective_sample_size

__all__ = [
    "PRESETS",
    "DatasetOffsets",
    "DatasetWeighting",
    "Offsets",
    "Solution",
    "StableWeighting",
    "WeightingSettings",
    "WholeSet",
    "WholeSetPlan",
    "context_use",
    "dependence_matrix",
    "effective_sample_size",
    "label_dependence",
    "pairwise_dependence",
    "pool_maps",
    "random_fourier_features",
    "recommend",
    "solve_dataset",
    "solve_offsets",
    "standardize",
]
