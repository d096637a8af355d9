"""A table fitted for the command line: folds by environment, missing values, the page and its verdict, mistakes."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

from stablenet import UserError
from stablenet.tabular.fit import FoldErrors, TableChoices, environment_shares, fit_table, summarise, write_page
from stablenet.tabular.reading import guess_task, read_csv


@pytest.fixture
def sites(mixed):
    frame, y = mixed
    return frame.assign(y=y, site=np.repeat(["north", "south"], 100)).reset_index(drop=True)


def test_environments_are_left_out_one_at_a_time(sites):
    report = fit_table(sites, TableChoices(target="y", environment="site"))
    assert [(held.name, held.rows) for held in report.held_out] == [("north", 100), ("south", 100)]
    assert list(report.x) == ["a", "b", "town"]
    design = pd.get_dummies(sites[["a", "b", "town"]]).to_numpy(dtype=float)
    train, test = sites.index[100:], sites.index[:100]
    design[:, :2] = (design[:, :2] - design[train, :2].mean(0)) / design[train, :2].std(0)
    expected = Ridge().fit(design[train], sites["y"][train]).predict(design[test])
    assert report.held_out[0].plain == pytest.approx(np.sqrt(np.mean((expected - sites["y"][test]) ** 2)))
    assert report.held_out[0].weighted != report.held_out[0].plain


def test_an_environment_without_a_name_is_no_column(sites):
    with pytest.raises(UserError, match="unknown column ''"):
        fit_table(sites, TableChoices(target="y", environment=""))


def test_without_environments_five_folds(sites):
    report = fit_table(sites.drop(columns="site"), TableChoices(target="y"))
    assert [held.rows for held in report.held_out] == [40] * 5
    errors = [held.plain for held in report.held_out]
    told = {name: plain for name, plain, _ in summarise(report)}
    assert told["spread"] == pytest.approx(np.std(errors, ddof=1))


def test_the_task_is_guessed():
    assert guess_task(pd.Series(["a", "b"])) == "classification"
    assert guess_task(pd.Series([0, 1, 1])) == "classification"
    assert guess_task(pd.Series([True, False])) == "classification"
    assert guess_task(pd.Series([0.5, 1.0])) == "regression"
    assert guess_task(pd.Series(range(50))) == "regression"


def test_missing_values_are_marked_dropped_or_refused(sites):
    sites.loc[3, "a"] = np.nan
    sites["town"] = sites["town"].astype(object).where(sites.index != 5)
    sites.loc[7, "y"] = np.nan
    choices = {"target": "y", "environment": "site"}
    with pytest.raises(UserError, match=r"a \(1\), town \(1\), y \(1\)"):
        fit_table(sites, TableChoices(**choices, missing="error"))
    dropped = fit_table(sites, TableChoices(**choices, missing="drop"))
    assert len(dropped.x) == 197
    marked = fit_table(sites, TableChoices(**choices))
    assert len(marked.x) == 199
    assert {"a missing", "town missing"} < set(marked.model.encoding_.column_names)
    assert marked.notes[1:] == (
        "1 rows left out for missing values",
        "gaps lie at their column's mean and are marked by a column of their own",
    )


def test_odd_columns_are_told(sites):
    """A number with stray text, text numbers, an identifier, a column of one value."""
    texts = sites.assign(a=sites["a"].astype(str), code=[f"c{i}" for i in sites.index], same="x", row=sites.index)
    notes = fit_table(texts, TableChoices(target="y", environment="site")).notes
    assert [re.search(r"'(\w+)'", note)[1] for note in notes] == ["a", "code", "row", "same"]
    stray = texts.assign(a=texts["a"].mask(texts.index == 4, "?"))
    with pytest.raises(UserError, match=r"'a' mixes numbers with values such as '\?'"):
        fit_table(stray, TableChoices(target="y", environment="site"))


def test_the_page_stands_alone_and_tells_the_numbers(sites, tmp_path):
    sites = sites.rename(columns={"b": "<b>"})
    report = fit_table(sites, TableChoices(target="y", environment="site"))
    write_page(report, tmp_path / "deep" / "page.html")
    text = (tmp_path / "deep" / "page.html").read_text(encoding="utf-8")
    assert text.count("<svg ") == 2
    assert not re.search(r"(src|href)=\"(?!data:|#)", text)
    assert "prefers-color-scheme: dark" in text
    assert f"{report.held_out[0].plain:.4g}" in text
    assert "&lt;b&gt;" in text
    assert "<b>" not in text.partition("</header>")[2].partition("</section>")[2]  # the cards' figures are bold


def test_shares_of_weight_sum_to_one(sites):
    report = fit_table(sites, TableChoices(target="y", environment="site"))
    shares = environment_shares(report)
    assert [name for name, _, _ in shares] == ["north", "south"]
    assert sum(weight for _, _, weight in shares) == pytest.approx(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": "yy"}, "unknown column 'yy': did you mean 'y'"),
        ({"environment": "sight"}, "unknown column 'sight'"),
        ({"method": "crbr"}, "for classification only"),
        ({"leave_out": ("a", "b", "site")}, "at least two are needed"),
    ],
)
def test_mistakes_are_told(sites, change, message):
    with pytest.raises(UserError, match=message):
        fit_table(sites, TableChoices(**{"target": "y", **change}))


@pytest.mark.parametrize("wrong", [{"task": "regresion"}, {"method": "dvr"}, {"missing": "fill"}, {"estimator": "x"}])
def test_unknown_choices_are_told(wrong):
    with pytest.raises(UserError, match=f"unknown {next(iter(wrong))}"):
        TableChoices(target="y", **wrong)


@pytest.mark.parametrize(
    ("change", "choices", "message"),
    [
        ({"y": 1.5}, {}, "one value, 1.5"),
        ({"y": "a"}, {}, "one value, a"),
        ({}, {"task": "classification"}, "use --task regression"),
        ({"y": range(200)}, {"task": "classification"}, "200 different numbers in 200 rows"),
        ({"y": ["a", "b"] * 100}, {"task": "regression"}, "use --task classification"),
        ({}, {"environment": "y"}, "both target and environment"),
        ({"site": ["p", "q"] * 100, "y": ["up", "down"] * 100}, {"environment": "site"}, "one class is left"),
        ({"when": pd.date_range("2020", periods=200)}, {}, "'when' holds values of type Timestamp"),
        ({"b": [[1]] * 200}, {}, "'b' holds values of type list"),
        ({"b": [1, "x"] * 100}, {}, "'b' mixes numbers with values such as 'x'"),
        ({"b": [True, "x"] * 100}, {}, "'b' mixes"),
        ({"b": np.inf}, {}, "'b' holds infinite numbers"),
    ],
)
def test_odd_tables_are_one_sentence(sites, change, choices, message):
    with pytest.raises(UserError, match=message) as error:
        fit_table(sites.assign(**change), TableChoices(**{"target": "y", **choices}))
    assert "\n" not in str(error.value)


def test_one_environment_is_told(sites):
    with pytest.raises(UserError, match="holds one value"):
        fit_table(sites.assign(site="north"), TableChoices(target="y", environment="site"))


def test_unreadable_files_are_told(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_csv(tmp_path / "none.csv")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(UserError, match="cannot be read as a table"):
        read_csv(tmp_path / "empty.csv")


def test_the_verdict_follows_the_worst_environment(sites):
    report = fit_table(sites, TableChoices(target="y", environment="site"))
    better = replace(report, held_out=(FoldErrors("north", 1, 2.0, 1.0), FoldErrors("south", 1, 1.0, 1.5)))
    worse = replace(report, held_out=(FoldErrors("north", 1, 2.0, 1.0), FoldErrors("south", 1, 1.0, 2.5)))
    assert "lower the error from 2 to 1.5" in better.verdict
    assert "keep equal weights" in worse.verdict


def test_columns_taken_together_are_told(sites):
    report = fit_table(sites.assign(copy=sites["a"] * 2), TableChoices(target="y", environment="site"))
    assert report.notes == ("taken together, as they determine each other: a, copy",)
