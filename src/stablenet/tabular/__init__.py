"""Stable learning for tables: estimators with the interface of scikit-learn.

In reading order: `estimators` (the public classes) and `estimator` (what they share); `reading` (a user's table,
checked), `encode` (from columns to numbers), `functions` (what is made uncorrelated) and `solve` (the weights);
`ancestors` (the earlier methods DWR, SRDO and CRBR, and the simulation they are tested on); `saved` (a model as a
file); `question` (which columns of a file play which part), `fit` and `table_page`, behind `stablenet table fit`.
"""

from stablenet.tabular.estimators import (
    CRBRClassifier,
    DWRClassifier,
    DWRRegressor,
    SRDOClassifier,
    SRDORegressor,
    StableClassifier,
    StableRegressor,
)

__all__ = [
    "CRBRClassifier",
    "DWRClassifier",
    "DWRRegressor",
    "SRDOClassifier",
    "SRDORegressor",
    "StableClassifier",
    "StableRegressor",
]
