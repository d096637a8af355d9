"""Stable learning for tables, in scikit-learn's manner."""

from stablenet.tables.estimators import (
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
