"""What `stablenet table fit` does: fit a table, cross-validate it by environment, and write a page about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.model_selection import KFold, StratifiedKFold

from stablenet._version import __version__
from stablenet.errors import UserError
from stablenet.independence.dependence_plot import arrange_features
from stablenet.pages import draw_maps, draw_weight_histogram, render, write_text
from stablenet.registry import Registry, unknown_name
from stablenet.tabular.estimator import WeightedEstimator
from stablenet.tabular.estimators import (
    CRBRClassifier,
    DWRClassifier,
    DWRRegressor,
    SRDOClassifier,
    SRDORegressor,
    StableClassifier,
    StableRegressor,
)
from stablenet.tabular.reading import Array, TableQuestion, Task, check_columns, divide_table, is_number, name_misfits

FOLDS = 5
ROWS_PER_CLASS = 2  # fewer on average: a continuous target

METHODS: Registry[dict[Task, type[WeightedEstimator]]] = Registry("method")
METHODS.add("stable", {"regression": StableRegressor, "classification": StableClassifier})
METHODS.add("dwr", {"regression": DWRRegressor, "classification": DWRClassifier})
METHODS.add("srdo", {"regression": SRDORegressor, "classification": SRDOClassifier})
METHODS.add("crbr", {"classification": CRBRClassifier})

ESTIMATORS: Registry[dict[Task, Any]] = Registry("estimator")
ESTIMATORS.add("linear", {"regression": None, "classification": None})
ESTIMATORS.add("mlp", {"regression": "mlp", "classification": "mlp"})
ESTIMATORS.add(
    "forest",
    {
        "regression": RandomForestRegressor(random_state=0),
        "classification": RandomForestClassifier(random_state=0),
    },
)


@dataclass(frozen=True, kw_only=True)
class TableChoices(TableQuestion):
    """The question, and the choices of method and estimator."""

    method: str = "stable"  # of METHODS
    estimator: str = "linear"  # of ESTIMATORS

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("method", METHODS), ("estimator", ESTIMATORS)):
            if getattr(self, name) not in list(known):
                raise UserError(unknown_name(name, getattr(self, name), known))


@dataclass(frozen=True)
class FoldErrors:
    """Errors on rows a model did not see: RMSE, or the share of wrong classes."""

    name: str
    rows: int
    plain: float
    weighted: float


@dataclass(frozen=True)
class TableReport:
    """A fitted table.   x: the columns used.   plain: the same estimator with equal weights."""

    choices: TableChoices
    task: Task
    x: pd.DataFrame
    y: Array
    environments: Array | None
    model: WeightedEstimator
    plain: WeightedEstimator
    held_out: tuple[FoldErrors, ...]
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """Whether to use the weights, according to the held-out errors, in one sentence."""
        what = "environment" if self.environments is not None else "fold"
        plain, weighted = (max(getattr(h, kind) for h in self.held_out) for kind in ("plain", "weighted"))
        if weighted < plain:
            return f"in the worst {what} the learned weights lower the error from {plain:.4g} to {weighted:.4g}"
        return f"in the worst {what} the learned weights do not lower the error: keep equal weights for this table"


def fit_table(frame: pd.DataFrame, choices: TableChoices) -> TableReport:
    """Fit all rows, and cross-validate: by environment where a column is named, else in five random folds."""
    table = divide_table(frame, choices)
    x, task, environments = table.x, table.task, table.environments
    check_target(table.y, task, environments)
    target = table.y.to_numpy(dtype=np.float64 if task == "regression" else None)
    template = _build_model(x, task, choices)
    with name_misfits():
        held_out = tuple(_cross_validate(template, x, target, environments, task))
        model = clone(template).fit(x, target)
        plain = model.fit_unweighted(x, target)
    joint = [f"taken together, as they determine each other: {names}" for names in _joint_columns(model)]
    return TableReport(choices, task, x, target, environments, model, plain, held_out, (*table.notes, *joint))


def check_target(y: pd.Series[Any], task: Task, environments: Array | None) -> None:
    """Refuse a target that the task cannot have, and rows that cannot be divided for cross-validation."""
    if len(y) < 2 * FOLDS:
        raise UserError(f"the table has {len(y)} rows: at least {2 * FOLDS} are needed to fit and cross-validate it")
    if y.nunique() < 2:
        raise UserError(f"the target holds one value, {y.iloc[0]}: at least two are needed")
    if task == "regression":
        if not pd.api.types.is_numeric_dtype(y):
            raise UserError(f"the target holds {y.iloc[0]!r}, which is not a number: use --task classification")
        check_columns(y.to_frame())
        return
    if is_number(y) and not bool((y == y.round()).all()):
        raise UserError(f"the target holds numbers such as {_first_fraction(y):g}, not classes: use --task regression")
    if y.map(type).nunique() > 1:
        raise UserError("the target mixes text and numbers: write its classes in one way")
    counts = y.value_counts()
    if is_number(y) and len(counts) * ROWS_PER_CLASS > len(y):
        raise UserError(f"the target holds {len(counts)} different numbers in {len(y)} rows: use --task regression")
    if environments is None and counts.max() < FOLDS:
        raise UserError(f"no class of the target has {FOLDS} rows, as cross-validation needs: are these classes?")
    for name in sorted(set(environments)) if environments is not None else ():
        if y[environments != name].nunique() < 2:
            raise UserError(
                f"without the environment {name!r} one class is left: cross-validation needs two in the rest"
            )


def _first_fraction(y: pd.Series[Any]) -> float:
    return float(y[y != y.round()].iloc[0])


def _joint_columns(model: WeightedEstimator) -> Iterator[str]:
    names = np.array([block.name for block in model.encoding_.blocks])
    for group in np.unique(model.groups_):
        if (model.groups_ == group).sum() > 1:
            yield ", ".join(names[model.groups_ == group])


def _build_model(x: pd.DataFrame, task: Task, choices: TableChoices) -> Any:
    kinds = METHODS[choices.method]
    if task not in kinds:
        raise UserError(f"the method {choices.method} is for classification only: choose stable, dwr or srdo")
    estimator = ESTIMATORS[choices.estimator][task]
    chosen = [name for name in choices.categorical if name in x.columns]
    return kinds[task](estimator, categorical=chosen or "auto", random_state=choices.seed)


def _cross_validate(
    template: Any, x: pd.DataFrame, y: Array, environments: Array | None, task: Task
) -> Iterator[FoldErrors]:
    for name, train, test in _folds(len(x), y, environments, task):
        model = clone(template).fit(x.iloc[train], y[train])
        plain = model.fit_unweighted(x.iloc[train], y[train])
        errors = [_error(m.predict(x.iloc[test]), y[test], task) for m in (plain, model)]
        yield FoldErrors(name, len(test), *errors)


def _folds(rows: int, y: Array, environments: Array | None, task: Task) -> Iterator[tuple[str, Array, Array]]:
    if environments is not None:
        names: Sequence[str] = sorted(set(environments))
        if len(names) < 2:
            raise UserError(f"the environment column holds one value, {names[0]!r}: at least two are needed")
        for name in names:
            own = environments == name
            yield name, np.flatnonzero(~own), np.flatnonzero(own)
        return
    kind = StratifiedKFold if task == "classification" else KFold
    for i, (train, test) in enumerate(kind(FOLDS, shuffle=True, random_state=0).split(np.zeros(rows), y), 1):
        yield f"fold {i}", train, test


def _error(predicted: Array, y: Array, task: Task) -> float:
    if task == "classification":
        return float(np.mean(predicted != y))
    return float(np.sqrt(np.mean((predicted - y) ** 2)))


MOST_COEFFICIENTS = 30
MOST_COLUMNS = 40  # of the map of dependences: the strongest, so that their names can be read


def write_page(report: TableReport, path: Path) -> None:
    """Render the page into `path`; charts are inside it, nothing is loaded from elsewhere."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render("tabular/page.html.jinja", gather(report)))


def gather(report: TableReport) -> dict[str, Any]:
    """Everything the template shows."""
    model, summary = report.model, summarise(report)
    errors = {name: (plain, weighted) for name, plain, weighted in summary}
    return {
        "version": __version__,
        "report": report,
        "what": "environment" if report.environments is not None else "fold",
        "measure": "RMSE" if report.task == "regression" else "share of wrong predictions",
        "left": model.dependence_after_ / model.dependence_before_ if model.dependence_before_ else 1.0,
        "ess_share": model.ess_ / len(report.x),
        "summary": summary,
        "mean": errors["mean"],
        "worst": errors["worst"],
        "better": sum(held.weighted < held.plain for held in report.held_out),
        "coefficients": compare_coefficients(report),
        "shares": environment_shares(report),
        "charts": {
            "dependence": Markup(draw_dependence(report)),
            "weights": Markup(draw_weight_histogram({"weights": model.weights_.tolist()})),
        },
    }


def summarise(report: TableReport) -> list[tuple[str, float, float]]:
    """Mean, sample deviation and worst of the held-out errors: (what, plain, weighted)."""
    errors = np.array([[h.plain, h.weighted] for h in report.held_out])
    found = {"mean": errors.mean(0), "spread": errors.std(0, ddof=1), "worst": errors.max(0)}
    return [(name, float(plain), float(weighted)) for name, (plain, weighted) in found.items()]


def compare_coefficients(report: TableReport) -> list[tuple[str, float, float]]:
    """Coefficients of a linear model with equal weights and with the learned ones, largest change first."""
    pair = [np.atleast_2d(getattr(m.estimator_, "coef_", np.empty((0, 0)))) for m in (report.plain, report.model)]
    if pair[0].shape[0] != 1 or pair[0].shape != pair[1].shape:
        return []
    names = report.model.encoding_.column_names
    rows = [(name, float(a), float(b)) for name, a, b in zip(names, *(p[0] for p in pair), strict=True)]
    return sorted(rows, key=lambda row: -abs(row[2] - row[1]))[:MOST_COEFFICIENTS]


def environment_shares(report: TableReport) -> list[tuple[str, float, float]]:
    """Each environment's share of the rows, and of the weight."""
    if report.environments is None:
        return []
    weight = report.model.weights_ / len(report.x)
    names = sorted(set(report.environments))
    own = [report.environments == name for name in names]
    return [(name, float(o.mean()), float(weight[o].sum())) for name, o in zip(names, own, strict=True)]


def draw_dependence(report: TableReport) -> str:
    """Strength of dependence of all pairs of columns with equal and with learned weights; the diagonal is blank."""
    names, before, after = report.model.measure_dependence(report.x)
    order = arrange_features(before, "clustered" if len(names) > 2 else "given")
    strongest = before.nan_to_num().amax(0).argsort(descending=True)[:MOST_COLUMNS].tolist()
    rows = [column for column in order if column in set(strongest)]
    maps = {
        title: strength[rows][:, rows].tolist() for title, strength in (("equal weights", before), ("learned", after))
    }
    below = f"the same {len(rows)} columns across"
    title = "Dependence of all pairs of columns, before and after weighting"
    return draw_maps(maps, [names[row] for row in rows], title, below, lambda value: f"{value:.2f}")
