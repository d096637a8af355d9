"""StableClassifier and StableRegressor, estimators of the earlier methods in the same form, and models as files.

A file holds plain numbers in JSON, which execute nothing, or a pickle on request:

save_model(model, Path("model.json"))
load_model(Path("model.json")).predict(frame)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from sklearn.base import ClassifierMixin

from stablenet.errors import UserError
from stablenet.files import read_object, write_json, write_whole
from stablenet.tabular.ancestors import balance_treatments, decorrelate_columns, estimate_density_ratio
from stablenet.tabular.encode import ColumnBlock, Encoding
from stablenet.tabular.estimator import MAX_CORRELATION, WeightedClassifier, WeightedEstimator, WeightedRegressor
from stablenet.tabular.reading import Array
from stablenet.tabular.solve import SolveSettings, network_features, solve_table
from stablenet.values import Count, Filled, NonNegative, Seed, Share, Whole


class StableWeights(WeightedEstimator):
    """Weights under which the columns are independent (Eq. 7, learning_weight over all n rows).

    estimator: any estimator whose `fit` takes sample_weight, a pipeline that ends in one, "mlp", or None for a
        linear model. It sees numeric columns standardised and categories one-hot.
    features: "columns", or "network" to balance the hidden units of a small network fitted to y first.
    num_functions: q Fourier functions for each numeric column, beside the column itself; 0 is the linear case.
    interactions: Fourier functions of three columns each, balanced against all other columns; 0 is the paper's
        statistic, which looks at pairs only.
    max_correlation: columns with a larger canonical correlation nearly determine each other; no weights can separate
        them, and they are treated as a group (see groups_).
    penalty: λ·mean(w²); more keeps more of the effective sample size and leaves more dependence.
    min_ess: floor of the effective sample size, as a share of the rows.
    max_evaluations, tolerance: when the search for the weights stops.
    categorical: "auto" (every column that is not numeric), or a list of column names or numbers to add.
    random_state: seeds the functions.
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        features: Literal["columns", "network"] = "columns",
        num_functions: Whole = 5,
        interactions: Whole = 100,
        max_correlation: Share = MAX_CORRELATION,
        penalty: NonNegative = SolveSettings.penalty,
        min_ess: Share = SolveSettings.min_ess,
        max_evaluations: Count = SolveSettings.max_evaluations,
        tolerance: NonNegative = SolveSettings.tolerance,
        network_width: Count = 16,
        categorical: str | Sequence[Any] = "auto",
        random_state: Seed = 0,
    ) -> None:
        super().__init__(
            estimator,
            num_functions=num_functions,
            interactions=interactions,
            max_correlation=max_correlation,
            categorical=categorical,
            random_state=random_state,
        )
        self.features = features
        self.penalty = penalty
        self.min_ess = min_ess
        self.max_evaluations = max_evaluations
        self.tolerance = tolerance
        self.network_width = network_width

    def _weigh(self, design: Array, target: Array, base: Array) -> Array:
        encoding = self.encoding_
        if self.features == "network":
            kind = isinstance(self, ClassifierMixin)
            design, encoding = network_features(
                design, target, base, classification=kind, width=self.network_width, seed=int(self.random_state)
            )
        settings = SolveSettings(
            penalty=self.penalty,
            min_ess=self.min_ess,
            max_evaluations=self.max_evaluations,
            tolerance=self.tolerance,
        )
        statistic = self._statistic(design, encoding, base)
        factors = solve_table(statistic, base, settings)
        self._measure(statistic, base, factors)
        return factors


class DWRWeights(WeightedEstimator):
    """Decorrelated weighted regression: weights under which the columns are uncorrelated; see `ancestors`."""

    def __init__(
        self,
        estimator: Any = None,
        *,
        steps: Count = 5000,
        num_functions: Whole = 5,
        interactions: Whole = 100,
        max_correlation: Share = MAX_CORRELATION,
        categorical: str | Sequence[Any] = "auto",
        random_state: Seed = 0,
    ) -> None:
        super().__init__(
            estimator,
            num_functions=num_functions,
            interactions=interactions,
            max_correlation=max_correlation,
            categorical=categorical,
            random_state=random_state,
        )
        self.steps = steps

    def _weigh(self, design: Array, target: Array, base: Array) -> Array:
        return self._measured(design, base, decorrelate_columns(design, self.encoding_, base, steps=self.steps))


class SRDOWeights(WeightedEstimator):
    """Sample-reweighted decorrelation: the density ratio to the table with shuffled columns; see `ancestors`."""

    def __init__(
        self,
        estimator: Any = None,
        *,
        hidden: Annotated[tuple[Count, ...], Filled()] = (98, 11),
        steps: Count = 500,
        num_functions: Whole = 5,
        interactions: Whole = 100,
        max_correlation: Share = MAX_CORRELATION,
        categorical: str | Sequence[Any] = "auto",
        random_state: Seed = 0,
    ) -> None:
        super().__init__(
            estimator,
            num_functions=num_functions,
            interactions=interactions,
            max_correlation=max_correlation,
            categorical=categorical,
            random_state=random_state,
        )
        self.hidden = hidden
        self.steps = steps

    def _weigh(self, design: Array, target: Array, base: Array) -> Array:
        factors = estimate_density_ratio(
            design, self.encoding_, base, seed=int(self.random_state), hidden=tuple(self.hidden), steps=self.steps
        )
        return self._measured(design, base, factors)


class CRBRClassifier(WeightedClassifier):
    """Causal regularisation by global balancing: weights learned with a logistic regression; see `ancestors`.

    balance: of the balancing term.   decay: of mean(w²).   Both must be large beside the loss, or the weights lower
    it by leaving out the rows that contradict the model; the defaults are the best of ten pairs on three or four draws
    of the selection-bias simulation (seeds 100–103). The estimator is then fitted with the learned weights,
    which for the default logistic regression is the joint problem's own optimum in its coefficients.
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        balance: NonNegative = 1e4,
        decay: NonNegative = 20.0,
        steps: Count = 2000,
        num_functions: Whole = 5,
        interactions: Whole = 100,
        max_correlation: Share = MAX_CORRELATION,
        categorical: str | Sequence[Any] = "auto",
        random_state: Seed = 0,
    ) -> None:
        super().__init__(
            estimator,
            num_functions=num_functions,
            interactions=interactions,
            max_correlation=max_correlation,
            categorical=categorical,
            random_state=random_state,
        )
        self.balance = balance
        self.decay = decay
        self.steps = steps

    def _weigh(self, design: Array, target: Array, base: Array) -> Array:
        codes = np.searchsorted(self.classes_, target)
        factors = balance_treatments(
            design, self.encoding_, base, codes, steps=self.steps, balance=self.balance, decay=self.decay
        )
        return self._measured(design, base, factors)


class DWRRegressor(DWRWeights, WeightedRegressor):
    """Weighted least squares with DWR's weights."""


class DWRClassifier(DWRWeights, WeightedClassifier):
    """Weighted logistic regression with DWR's weights."""


class SRDORegressor(SRDOWeights, WeightedRegressor):
    """Weighted least squares with SRDO's weights."""


class SRDOClassifier(SRDOWeights, WeightedClassifier):
    """Weighted logistic regression with SRDO's weights."""


class StableRegressor(StableWeights, WeightedRegressor):
    """Regression that does not rely on accidental dependence between columns.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(200, 3))
    >>> model = StableRegressor().fit(x, x[:, 0])
    >>> bool(model.dependence_after_ < model.dependence_before_)
    True
    """


class StableClassifier(StableWeights, WeightedClassifier):
    """Classification that does not rely on accidental dependence between columns; see `StableWeights`.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(200, 3))
    >>> StableClassifier().fit(x, x[:, 0] > 0).predict(x[:2]).shape
    (2,)
    """


PLAIN, PICKLE = ".json", ".joblib"
_FORMAT = 2
_READ = (1, _FORMAT)  # the first had no gaps
_LINEAR = ("LogisticRegression", "Ridge")
_KINDS: dict[str, type[WeightedEstimator]] = {
    kind.__name__: kind
    for kind in (
        StableClassifier,
        StableRegressor,
        DWRClassifier,
        DWRRegressor,
        SRDOClassifier,
        SRDORegressor,
        CRBRClassifier,
    )
}


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
    if values.get("format") not in _READ or values.get("kind") not in [*_KINDS]:
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
    model: Any = _KINDS[values["kind"]]()
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
