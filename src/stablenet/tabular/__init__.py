"""Stable learning for tabular data: estimators with the interface of scikit-learn.

In reading order: `estimators` (the public classes, and their models as files) and `estimator` (what they share);
`reading` (a user's table, checked, and which of its columns play which part), `encode` (from columns to numbers),
`solve` (what is made uncorrelated, and the weights); `ancestors` (the earlier methods DWR, SRDO and CRBR, and the
simulation they are tested on); and `fit`, behind `stablenet table fit`.
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
