"""Shared by all tabular estimators: check, encode, compute weights, fit the wrapped estimator with them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
import torch
from scipy.linalg import solve
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import Pipeline
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, _check_y, check_is_fitted, column_or_1d, has_fit_parameter

from stablenet.errors import UserError
from stablenet.tabular.encode import Encoding, encode, learn_encoding
from stablenet.tabular.reading import Array, read_rows, read_table
from stablenet.tabular.solve import (
    FunctionSettings,
    TableStatistic,
    draw_functions,
    prepare_statistic,
    small_network,
)
from stablenet.values import Seed, Share, Whole, check_arguments, require
from stablenet.weighting import effective_sample_size
from stablenet.weighting.statistic import ROWS_AT_ONCE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Above this canonical correlation one column nearly determines the other: about 50 of 1,000 rows distinguish them.
MAX_CORRELATION = 0.95
ROWS_DRAWN = 5000  # of a large table, for the picture


class WeightedEstimator(BaseEstimator):  # type: ignore[misc]
    """Learns one weight per row, then fits `estimator` with them.

    After `fit`: weights_ (n,), non-negative, sums to n; ess_, their effective sample size (Σw)²/Σw²;
    dependence_before_ and dependence_after_, D over the same functions without and with the weights;
    groups_ (m,), equal for columns that determine each other and were not made independent of each other;
    estimator_; encoding_, the columns it was given; n_features_in_ and, for frames, feature_names_in_.
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        num_functions: Whole = 5,
        interactions: Whole = 100,
        max_correlation: Share = MAX_CORRELATION,
        categorical: str | Sequence[Any] = "auto",
        random_state: Seed = 0,
    ) -> None:
        self.estimator = estimator
        self.num_functions = num_functions
        self.interactions = interactions
        self.max_correlation = max_correlation
        self.categorical = categorical
        self.random_state = random_state

    @abstractmethod
    def _weigh(self, design: Array, target: Array, base: Array) -> Array:
        """Find factors w (n,) of mean one under the base weights (n,), and `_measure` them.

        design: (n, d) numbers, columns as in encoding_.   target: (n,).
        """

    @abstractmethod
    def _default_estimator(self) -> Any:
        """The linear model that is fitted when `estimator` is None."""

    @abstractmethod
    def _read_target(self, y: Any) -> Array:
        """Check y and give what the wrapped estimator is to see."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """X: (n, m) array or frame; columns that are no numbers are categories.   y: (n,).   sample_weight: (n,).

        Gaps in X are handled: a missing number lies at its column's mean and is marked by a column of its own, a
        missing category is a category.
        """
        check_arguments(type(self).__init__, vars(self))
        table = read_table(self, X, self.categorical)
        target = self._read_target(y)
        if len(target) != len(table):
            raise UserError(f"X has {len(table)} rows and y has {len(target)}: they must describe the same samples")
        given = np.asarray(_check_sample_weight(sample_weight, table, dtype=np.float64, ensure_non_negative=True))
        kept = given > 0
        if kept.sum() < 2:
            raise UserError(f"only {kept.sum()} rows have a positive sample_weight: at least 2 are needed")
        if not kept.all():  # a row of weight zero is a row that is not there
            table, target = table[kept], target[kept]
        base = given[kept]
        self.encoding_ = learn_encoding(self, table, self.categorical, base / base.sum())
        design = encode(self, table, self.encoding_)
        factors = self._weigh(design, target, base)
        self.weights_ = np.zeros(len(given))
        self.weights_[kept] = base * factors * (len(given) / (base @ factors))
        self.ess_ = float(effective_sample_size(self.weights_))
        self.estimator_ = self._fit_estimator(design, target, base * factors)
        return self

    def _measured(self, design: Array, base: Array, factors: Array) -> Array:
        """The factors, after their dependence over the table's columns has been measured."""
        self._measure(self._statistic(design, self.encoding_, base), base, factors)
        return factors

    def _measure(self, statistic: TableStatistic, base: Array, factors: Array) -> None:
        before, _ = statistic.value_and_gradient(torch.from_numpy(base))
        after, _ = statistic.value_and_gradient(torch.from_numpy(base * factors))
        self.dependence_before_, self.dependence_after_ = float(before), float(after)
        self.groups_ = statistic.groups.numpy()

    def _statistic(self, design: Array, encoding: Encoding, base: Array) -> TableStatistic:
        settings = FunctionSettings(
            num_functions=self.num_functions, interactions=self.interactions, seed=int(self.random_state)
        )
        functions = draw_functions(encoding, settings)
        return prepare_statistic(design, encoding, functions, base, self.max_correlation)

    def _fit_estimator(self, design: Array, target: Array, weights: Array) -> Any:
        inner = self._chosen_estimator(len(design))
        inner.fit(design, target, **{weight_argument(inner): weights})
        return inner

    def _chosen_estimator(self, rows: int) -> Any:
        if self.estimator is None:
            return self._default_estimator()
        if isinstance(self.estimator, str) and self.estimator == "mlp":
            return small_network(isinstance(self, ClassifierMixin), rows, int(self.random_state))
        fits = hasattr(self.estimator, "get_params") and not isinstance(self.estimator, type)
        require(fits, "estimator", "an estimator, 'mlp' or None", self.estimator)
        return clone(self.estimator)

    def _encode(self, X: Any) -> Array:
        check_is_fitted(self)
        return encode(self, read_rows(self, X, mixed=self.encoding_.mixed), self.encoding_)

    def predict(self, X: Any) -> Array:
        """The wrapped estimator's predictions (n,)."""
        design = self._encode(X)
        return np.asarray(self.estimator_.predict(design))

    def fit_unweighted(self, X: Any, y: Any) -> Self:
        """A copy of this fitted model whose estimator was fitted again with equal weights, to compare with."""
        design, target = self._encode(X), self._read_target(y)
        twin = copy(self)
        twin.weights_ = np.ones(len(design))
        twin.ess_, twin.dependence_after_ = float(len(design)), self.dependence_before_
        twin.estimator_ = self._fit_estimator(design, target, twin.weights_)
        return twin

    def plot_dependence(self, X: Any, **options: Any) -> Figure:
        """Which columns depend on which, before and after weighting; X is the table `fit` was given.

        A category enters by its number. Of more than 5,000 rows a sample is drawn. options: those of
        `stablenet.plot_dependence`.
        """
        from stablenet.independence import plot_dependence

        frame, weights = self._draw_columns(X)
        generator = options.pop("generator", None) or torch.Generator().manual_seed(0)
        return plot_dependence(frame, weights=weights, generator=generator, **options)

    def measure_dependence(self, X: Any) -> tuple[list[str], torch.Tensor, torch.Tensor]:
        """The numbers of `plot_dependence`: m names, strengths (m, m) before and after; the diagonal is NaN."""
        from stablenet.independence.dependence_plot import measure_twice

        frame, weights = self._draw_columns(X)
        before, after = measure_twice(frame, weights, torch.Generator().manual_seed(0))
        return [str(name) for name in frame], before, after

    def _draw_columns(self, X: Any) -> tuple[pd.DataFrame, Array]:
        """One number per column, and the weights, of at most `ROWS_DRAWN` rows drawn at random."""
        design = self._encode(X)
        if len(design) != len(self.weights_):
            raise UserError(f"X has {len(design)} rows, fit was given {len(self.weights_)}: pass the training table")
        names = [block.name for block in self.encoding_.blocks]
        frame = pd.DataFrame(self.encoding_.number_columns(design), columns=names)
        rows = np.random.default_rng(0).permutation(len(frame))[:ROWS_DRAWN]
        return frame.iloc[rows], self.weights_[rows]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        tags.input_tags.string = False
        tags.input_tags.allow_nan = True
        return tags


def weight_argument(estimator: Any) -> str:
    """The name under which an estimator's `fit` takes sample weights; a pipeline passes them to its last step."""
    if isinstance(estimator, Pipeline):
        name, last = estimator.steps[-1]
        if has_fit_parameter(last, "sample_weight"):
            return f"{name}__sample_weight"
    elif has_fit_parameter(estimator, "sample_weight"):
        return "sample_weight"
    raise UserError(
        f"{type(estimator).__name__} takes no sample_weight in fit, so it cannot be weighted: "
        "choose an estimator that does"
    )


def fit_ridge(model: Any, design: Array, target: Array, weights: Array) -> Any:
    """`model.fit(design, target, weights)` by the same normal equations, without the two copies that it makes.

    model: scikit-learn's Ridge.   design: (n, d).   target, weights: (n,).
    """
    total, width = weights.sum(), design.shape[1]
    means = weights @ design / total
    level = weights @ target / total
    moments, products = model.alpha * np.eye(width), np.zeros(width)
    for start in range(0, len(design), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        centred = design[rows] - means
        weighted = centred * weights[rows, None]
        moments += weighted.T @ centred
        products += weighted.T @ (target[rows] - level)
    model.coef_ = solve(moments, products, assume_a="pos")
    model.intercept_ = level - means @ model.coef_
    model.n_features_in_ = width
    return model


class WeightedRegressor(RegressorMixin, WeightedEstimator):  # type: ignore[misc]
    """A regression with learned row weights; ridge by default."""

    def _default_estimator(self) -> Any:
        return Ridge(alpha=1.0)

    def _fit_estimator(self, design: Array, target: Array, weights: Array) -> Any:
        if self.estimator is None:
            return fit_ridge(self._default_estimator(), design, target, weights)
        return super()._fit_estimator(design, target, weights)

    def _read_target(self, y: Any) -> Array:
        return np.asarray(_check_y(y, y_numeric=True, estimator=self), dtype=np.float64)


def _wrapped_has(name: str) -> Any:
    def check(self: Any) -> bool:
        inner = self.estimator_ if hasattr(self, "estimator_") else self._chosen_estimator(0)
        return hasattr(inner, name)

    return check


class WeightedClassifier(ClassifierMixin, WeightedEstimator):  # type: ignore[misc]
    """A classification with learned row weights; logistic by default."""

    def _default_estimator(self) -> Any:
        return LogisticRegression(max_iter=1000)

    def _read_target(self, y: Any) -> Array:
        check_classification_targets(y)
        values = column_or_1d(_check_y(y, y_numeric=False, estimator=self), warn=True)
        self.classes_ = np.unique(values)
        return np.asarray(values)

    @available_if(_wrapped_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Array:
        """Probabilities (n, classes) in the order of classes_."""
        design = self._encode(X)
        return np.asarray(self.estimator_.predict_proba(design))

    @available_if(_wrapped_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Array:
        """The wrapped estimator's decision values."""
        design = self._encode(X)
        return np.asarray(self.estimator_.decision_function(design))
