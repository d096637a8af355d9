"""The paper's statistic as a test of independence: p-values, all pairs of features, a picture.

>>> import torch
>>> x = torch.linspace(-1, 1, 100)
>>> result = independence_test(x, x.square())
>>> bool(result.p_value < 0.01)
True
"""

from stablenet.independence.plot import plot_dependence
from stablenet.independence.testing import (
    IndependenceResult,
    independence_test,
    pairwise_independence_test,
)

__all__ = ["IndependenceResult", "independence_test", "pairwise_independence_test", "plot_dependence"]
