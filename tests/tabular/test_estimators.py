"""The estimators pass scikit-learn's checks, remove an unstable column, and work in pipelines and searches."""

from __future__ import annotations

import inspect
import pickle
import tracemalloc
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import stablenet
from stablenet import UserError
from stablenet.tabular import (
    CRBRClassifier,
    DWRClassifier,
    DWRRegressor,
    SRDOClassifier,
    SRDORegressor,
    StableClassifier,
    StableRegressor,
)
from stablenet.tabular.ancestors import Simulation
from stablenet.tabular.estimator import fit_ridge
from stablenet.tabular.reading import TableWarning

# Adam's path and a shuffle are not the same for a repeated row and a row of weight two.
UNEQUAL = "a sample weight is a repeated row only in the objective, not in the path of its optimiser"
EQUIVALENCE = {
    "check_sample_weight_equivalence_on_dense_data": UNEQUAL,
    "check_sample_weight_equivalence_on_sparse_data": UNEQUAL,
}


def run_checks(estimator, expected=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks themselves feed data that cannot converge
        results = check_estimator(estimator, expected_failed_checks=expected, on_skip=None, on_fail=None)
    failed = [f"{r['check_name']}: {r['exception']}" for r in results if r["status"] == "failed"]
    assert not failed, "\n".join(failed)
    assert len(results) > 40


@pytest.mark.parametrize("estimator", [StableRegressor(), StableClassifier()], ids=lambda e: type(e).__name__)
def test_scikit_learns_checks_pass(estimator):
    run_checks(estimator)


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator",
    [
        DWRRegressor(steps=50),
        DWRClassifier(steps=50),
        SRDORegressor(steps=20),
        SRDOClassifier(steps=20),
        CRBRClassifier(steps=50),
    ],
    ids=lambda e: type(e).__name__,
)
def test_scikit_learns_checks_pass_for_the_ancestors(estimator):
    run_checks(estimator, EQUIVALENCE)


@pytest.fixture(scope="module")
def biased():
    return Simulation().draw(800, 1.7, np.random.default_rng(7))


@pytest.mark.parametrize(
    "model",
    [
        StableRegressor(),
        StableRegressor(features="network"),
        DWRRegressor(steps=100),
        SRDORegressor(steps=30),
    ],
    ids=["columns", "network", "dwr", "srdo"],
)
def test_what_is_told_after_fit_holds(model, biased):
    x, y = biased
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few steps
        model.fit(x, y)
    w = model.weights_
    assert w.shape == (800,)
    assert (w >= 0).all()
    assert w.sum() == pytest.approx(800)
    assert model.ess_ == pytest.approx(w.sum() ** 2 / (w**2).sum())
    if not isinstance(model, SRDORegressor):  # its classifier may learn the rows by heart, and makes no promise
        assert model.dependence_after_ < model.dependence_before_
    inner = Ridge().fit((x - x.mean(0)) / x.std(0), y, sample_weight=w)
    np.testing.assert_allclose(model.predict(x), inner.predict((x - x.mean(0)) / x.std(0)))


def test_stable_weights_take_the_unstable_column_out(biased):
    x, y = biased
    plain = LinearRegression().fit(x, y).coef_[-1]
    model = StableRegressor(LinearRegression()).fit(x, y)
    weighted = model.estimator_.coef_[-1] / x[:, -1].std()
    assert plain > 0.2
    assert abs(weighted) < 0.4 * plain


def test_a_worse_environment_is_predicted_better(biased):
    x, y = biased
    new_x, new_y = Simulation().draw(800, -2.0, np.random.default_rng(8))
    errors = [
        np.mean((m.fit(x, y).predict(new_x) - new_y) ** 2)
        for m in (LinearRegression(), StableRegressor(LinearRegression()))
    ]
    assert errors[1] < errors[0]


def test_fit_unweighted_is_the_plain_estimator(biased):
    x, y = biased
    twin = StableRegressor(LinearRegression()).fit(x, y).fit_unweighted(x, y)
    np.testing.assert_allclose(twin.predict(x), LinearRegression().fit(x, y).predict(x))
    assert twin.ess_ == 800


def test_frames_with_categories_in_any_row_order(mixed):
    frame, y = mixed
    model = StableRegressor().fit(frame, y)
    order = np.random.default_rng(0).permutation(len(frame))
    again = StableRegressor().fit(frame.iloc[order], y[order])
    np.testing.assert_allclose(again.weights_, model.weights_[order], rtol=1e-5, atol=1e-6)
    assert list(model.feature_names_in_) == ["a", "b", "town"]
    assert [block.width for block in model.encoding_.blocks] == [1, 1, 3]
    assert model.dependence_after_ < 0.5 * model.dependence_before_


def test_the_weighted_category_is_nearly_independent_of_the_column_it_followed(mixed):
    frame, y = mixed
    model = StableRegressor(penalty=0.002).fit(frame, y)

    def spread_of_means(w):
        rows = [(frame["town"] == town).to_numpy() for town in frame["town"].unique()]
        return np.ptp([np.average(frame["a"][r], weights=w[r]) for r in rows])

    assert spread_of_means(model.weights_) < 0.3 * spread_of_means(np.ones(len(frame)))


def test_columns_that_determine_each_other_are_taken_together(mixed):
    frame, y = mixed
    model = StableRegressor().fit(frame.assign(copy=frame["a"] * 3 + 1e-3 * frame["b"]), y)
    assert model.groups_[0] == model.groups_[3]
    assert len(set(model.groups_[:3])) == 3


def test_sample_weight_zero_is_a_missing_row(mixed):
    frame, y = mixed
    s = np.tile([1.0, 2.0, 0.0, 1.0], 50)
    kept = s > 0
    model = StableRegressor().fit(frame, y, sample_weight=s)
    without = StableRegressor().fit(frame[kept], y[kept], sample_weight=s[kept])
    np.testing.assert_allclose(model.predict(frame), without.predict(frame))
    assert (model.weights_[~kept] == 0).all()
    assert model.weights_.sum() == pytest.approx(200)


def test_grid_search_over_a_pipeline(mixed):
    frame, y = mixed
    numbers = frame[["a", "b"]].assign(c=frame["a"] ** 2)
    pipeline = make_pipeline(StandardScaler(), StableRegressor())
    search = GridSearchCV(pipeline, {"stableregressor__penalty": [0.02, 1.0]}, cv=2).fit(numbers, y)
    assert set(search.cv_results_["param_stableregressor__penalty"]) == {0.02, 1.0}
    assert search.score(numbers, y) > 0.5


def test_any_weighted_estimator_and_pipelines_ending_in_one(mixed):
    frame, y = mixed
    for inner in (
        RandomForestRegressor(5, random_state=0),
        make_pipeline(StandardScaler(), Ridge()),
        "mlp",
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the network's 200 epochs
            assert StableRegressor(inner).fit(frame, y).predict(frame).shape == (200,)


def test_classes_keep_their_names_and_probabilities(mixed):
    frame, y = mixed
    names = np.where(y > 0, "up", "down")
    model = StableClassifier().fit(frame, names)
    assert set(model.predict(frame)) <= {"up", "down"}
    assert model.predict_proba(frame).sum(1) == pytest.approx(1)
    assert model.decision_function(frame).shape == (200,)
    assert model.score(frame, names) > 0.8
    assert not hasattr(StableClassifier(LogisticRegression()), "transform")


def test_a_fitted_model_is_pickled_and_cloned(mixed):
    frame, y = mixed
    model = StableRegressor(penalty=0.05).fit(frame, y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(frame), model.predict(frame))
    assert clone(model).get_params()["penalty"] == 0.05


def test_one_column_weighs_all_rows_equally():
    x = np.random.default_rng(0).normal(size=(30, 1))
    model = StableRegressor().fit(x, x[:, 0])
    np.testing.assert_allclose(model.weights_, 1)


def test_the_picture_shows_before_and_after(mixed):
    from matplotlib import pyplot as plt

    frame, y = mixed
    model = StableRegressor().fit(frame, y)
    figure = model.plot_dependence(frame)
    titles = [ax.get_title() for ax in figure.axes]
    assert any("weighted" in title for title in titles)
    plt.close(figure)
    with pytest.raises(UserError, match="fit was given 200"):
        model.plot_dependence(frame.iloc[:50])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (StableRegressor(KNeighborsRegressor()), "takes no sample_weight"),
        (StableRegressor("forest"), "estimator must be an estimator, 'mlp' or None, got 'forest'"),
        (StableRegressor(Ridge), "estimator must be an estimator"),
        (StableRegressor(features="colums"), "did you mean 'columns'"),
        (StableRegressor(penalty=-1), "penalty"),
    ],
)
def test_mistakes_are_told(model, message, mixed):
    with pytest.raises(UserError, match=message):
        model.fit(*mixed)


@pytest.mark.parametrize("kind", [StableClassifier, DWRClassifier, SRDOClassifier, CRBRClassifier])
def test_every_parameter_is_typed_and_bounded(kind):
    """All but `estimator` and `categorical`, which are read by functions of their own, take no such value."""
    x = np.random.default_rng(0).normal(size=(20, 2))
    names = set(inspect.signature(kind).parameters) - {"estimator"}
    for name in names:
        for wrong in ("none", float("nan"), -1, True):
            with pytest.raises(UserError, match=rf"^(unknown )?{name} "):
                kind(**{name: wrong}).fit(x, x[:, 0] > 0)


def test_a_table_and_target_of_different_length(mixed):
    frame, y = mixed
    with pytest.raises(UserError, match="200 rows and y has 199"):
        StableRegressor().fit(frame, y[:-1])


def test_gaps_are_handled_and_infinite_numbers_are_not(mixed):
    frame, y = mixed
    gaps = frame.assign(b=frame["b"].mask(frame["a"] > 1), town=frame["town"].mask(frame["a"] < -1))
    model = StableRegressor().fit(gaps, y)
    assert model.score(gaps, y) > 0.9
    assert model.encoding_.column_names[-1] == "town missing"
    numbers = frame[["a", "b"]].assign(c=frame["a"] ** 2, b=gaps["b"])
    assert StableRegressor().fit(numbers.to_numpy(), y).score(numbers.to_numpy(), y) > 0.9
    for table in (numbers.assign(a=np.inf), numbers.assign(a=np.inf).to_numpy()):
        with pytest.raises(ValueError, match="infinity"):
            StableRegressor().fit(table, y)


def test_numbers_that_an_imputer_left_as_objects_stay_numbers(mixed):
    """They were 200 categories, and the model knew nothing of new rows."""
    frame, y = mixed
    gaps = frame.assign(town=frame["town"].astype(object).mask(frame["b"] > 2), b=frame["b"].mask(frame["b"] > 2))
    imputed = SimpleImputer(strategy="most_frequent").fit_transform(gaps)
    table = pd.DataFrame(imputed, columns=frame.columns)
    assert table["a"].dtype == object
    with pytest.warns(TableWarning, match="'a' is stored as text or objects"):
        model = StableRegressor().fit(table[:150], y[:150])
    assert [block.width for block in model.encoding_.blocks] == [1, 1, 3]
    assert model.score(table[150:], y[150:]) > 0.8


def test_a_mixed_frame_prepared_column_by_column(mixed):
    frame, y = mixed
    gaps = frame.assign(b=frame["b"].mask(frame["a"] > 1), town=frame["town"].astype(object))
    prepared = make_column_transformer(
        (StandardScaler(), ["a"]), remainder="passthrough", verbose_feature_names_out=False
    ).set_output(transform="pandas")
    pipeline = make_pipeline(prepared, StableRegressor()).fit(gaps, y)
    np.testing.assert_allclose(pipeline.predict(gaps), StableRegressor().fit(gaps, y).predict(gaps), rtol=1e-4)


def test_a_fit_takes_little_memory_beside_the_table():
    x = np.random.default_rng(0).standard_normal((60_000, 50))
    y = x[:, 0] + x[:, 1] ** 2
    tracemalloc.start()
    StableRegressor(num_functions=0, interactions=0, max_evaluations=1).fit(x, y)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2.0 * x.nbytes  # the design, and what the search takes


def test_the_final_regression_is_scikit_learns_in_less_memory():
    x = np.random.default_rng(0).standard_normal((5000, 4)) @ np.array(
        [[1, 0.5, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0], [3, 0, 0, 9]]
    )
    y, w = x @ [1.0, 2, 3, 4] + 7, np.random.default_rng(1).random(5000) + 0.1
    found, expected = fit_ridge(Ridge(alpha=1.0), x, y, w), Ridge(alpha=1.0).fit(x, y, w)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.predict(x), expected.predict(x), rtol=1e-9, atol=1e-9)


def test_the_public_names():
    assert stablenet.StableRegressor is StableRegressor
    assert stablenet.StableClassifier is StableClassifier


def test_text_in_an_array_says_how_to_keep_the_columns_apart():
    """What an imputer makes of a frame with categories, where the step is not asked for a frame."""
    frame = pd.DataFrame({"size": [1.0, 2.0, 3.0, np.nan] * 5, "town": ["hills", "harbour"] * 10})
    target = np.arange(20.0)
    imputed = make_pipeline(SimpleImputer(strategy="most_frequent"), StableRegressor())
    with pytest.raises(UserError, match=r"the array holds text, such as 'hills': pass a data frame.*set_output"):
        imputed.fit(frame, target)
    imputed[:-1].set_output(transform="pandas")
    with pytest.warns(TableWarning, match="'size' is stored as text or objects and is read as numbers"):
        assert len(imputed.fit(frame, target).predict(frame)) == 20
    with pytest.raises(UserError, match="the array holds text, such as 'low'"):
        StableRegressor().fit(np.arange(40.0).reshape(20, 2), target).predict([["low", 1.0]])
