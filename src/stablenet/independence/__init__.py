"""The paper's statistic as a test of independence: p-values, all pairs of features, a picture.

>>> import torch
>>> x = torch.linspace(-1, 1, 100)
>>> result = independence_test(x, x.square())
>>> bool(result.p_value < 0.01)
True

In reading order: `testing` (the tests and their null distribution), `column_features` (what a user passes, as Fourier
features of every column) and `dependence_plot` (the picture).
"""

from stablenet.independence.dependence_plot import plot_dependence
from stablenet.independence.testing import (
    IndependenceResult,
    independence_test,
    pairwise_independence_test,
)

__all__ = ["IndependenceResult", "independence_test", "pairwise_independence_test", "plot_dependence"]
