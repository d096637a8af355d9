"""A fitted table model as a file: plain numbers in JSON, which execute nothing, or a pickle for whoever asks for one.

model = load_model(Path("model.json"))
model.predict(frame)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from stablenet.errors import UserError
from stablenet.files import read_object, write_json, write_whole
from stablenet.tabular import estimators
from stablenet.tabular.encode import ColumnBlock, Encoding
from stablenet.tabular.estimator import WeightedEstimator

PLAIN, PICKLE = ".json", ".joblib"
_FORMAT = 2
_READ = (1, _FORMAT)  # the first had no gaps
_LINEAR = ("LogisticRegression", "Ridge")
_KINDS = ("StableClassifier", "StableRegressor", "DWRClassifier", "DWRRegressor", "SRDOClassifier", "SRDORegressor")


def check_saving(path: Path, estimator: str) -> None:
    """Refuse what cannot be saved before anything is fitted.   estimator: as in `TableChoices`."""
    if path.suffix not in (PLAIN, PICKLE):
        raise UserError(f"a model is saved as {PLAIN} (plain numbers) or {PICKLE} (a pickle), got {path.name!r}")
    if path.suffix == PLAIN and estimator != "linear":
        raise UserError(
            f"only a linear model can be written as plain numbers: give a path that ends in {PICKLE}, a pickle, "
            "which executes what it holds when it is loaded"
        )


def save_model(model: WeightedEstimator, path: Path) -> None:
    """Write a fitted model, by the path's ending."""
    if path.suffix == PICKLE:
        import joblib  # type: ignore[import-untyped]

        write_whole(path, lambda partial: joblib.dump(model, partial))
        return
    write_json(path, _describe(model))


def load_model(path: Path) -> WeightedEstimator:
    """A model written as plain numbers; it predicts as the one that was saved."""
    values = read_object(path)
    if values.get("format") not in _READ or values.get("kind") not in (*_KINDS, "CRBRClassifier"):
        raise UserError(f"{path} is not a table model of format {_FORMAT}, the one this version reads")
    try:
        return _restore(values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is damaged: {error}") from error


def _describe(model: WeightedEstimator) -> dict[str, Any]:
    encoding, inner = model.encoding_, model.estimator_
    assert type(inner).__name__ in _LINEAR
    return {
        "format": _FORMAT,
        "kind": type(model).__name__,
        "columns": [
            {
                "name": block.name,
                "categories": None if block.categories is None else list(map(_plain, block.categories)),
                "gaps": block.gaps,
            }
            for block in encoding.blocks
        ],
        "named": hasattr(model, "feature_names_in_"),
        "mean": encoding.mean.tolist(),
        "scale": [value if np.isfinite(value) else None for value in encoding.scale.tolist()],  # of a constant column
        "coefficients": inner.coef_.tolist(),
        "intercept": np.asarray(inner.intercept_).tolist(),
        "classes": model.classes_.tolist() if hasattr(model, "classes_") else None,
        "weights": model.weights_.tolist(),
    }


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _restore(values: dict[str, Any]) -> WeightedEstimator:
    model: Any = getattr(estimators, values["kind"])()
    blocks: list[ColumnBlock] = []
    start = 0
    for column in values["columns"]:
        categories = None if column["categories"] is None else tuple(column["categories"])
        blocks.append(ColumnBlock(column["name"], start, categories, bool(column.get("gaps", False))))
        start += blocks[-1].width
    scale = np.array([np.inf if value is None else value for value in values["scale"]], dtype=np.float64)
    model.encoding_ = Encoding(tuple(blocks), np.array(values["mean"], dtype=np.float64), scale)
    model.n_features_in_ = len(blocks)
    if values["named"]:
        model.feature_names_in_ = np.array([block.name for block in blocks], dtype=object)
    model.weights_ = np.array(values["weights"], dtype=np.float64)
    inner = model._default_estimator()
    inner.coef_, inner.intercept_ = np.array(values["coefficients"]), np.array(values["intercept"])
    inner.n_features_in_ = inner.coef_.shape[-1]
    if values["classes"] is not None:
        model.classes_ = inner.classes_ = np.array(values["classes"])
    model.estimator_ = inner
    return model  # type: ignore[no-any-return]
