"""What `stablenet table fit` does: read a table, fit it, cross-validate it by environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.model_selection import KFold, StratifiedKFold

from stablenet.errors import UserError
from stablenet.frames import read_frame
from stablenet.registry import Registry, unknown_name
from stablenet.tabular.encode import Array
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

Task = Literal["regression", "classification"]
FEW_VALUES = 10  # a numeric target with no more different values than this is taken for classes
FOLDS = 5
LARGEST = 1e100  # of a column: its square is still a number
TASKS = ("auto", "regression", "classification")
MISSING = ("error", "drop", "fill")

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
class TableChoices:
    """What the user asked for.   missing: "error", "drop" the rows, or "fill" (medians, a category of its own)."""

    target: str
    environment: str | None = None
    task: str = "auto"  # or "regression", "classification"
    method: str = "stable"  # of METHODS
    estimator: str = "linear"  # of ESTIMATORS
    leave_out: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    missing: str = "error"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (("task", TASKS), ("missing", MISSING), ("method", METHODS), ("estimator", ESTIMATORS)):
            if getattr(self, name) not in list(known):
                raise UserError(unknown_name(name, getattr(self, name), known))


@dataclass(frozen=True)
class HeldOut:
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
    held_out: tuple[HeldOut, ...]
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """What the held-out errors say about using the weights, in one sentence."""
        what = "environment" if self.environments is not None else "fold"
        plain, weighted = (max(getattr(h, kind) for h in self.held_out) for kind in ("plain", "weighted"))
        if weighted < plain:
            return f"in the worst {what} the learned weights lower the error from {plain:.4g} to {weighted:.4g}"
        return f"in the worst {what} the learned weights do not lower the error: keep equal weights for this table"


def read_csv(path: Path) -> pd.DataFrame:
    """A comma-separated table with a header."""
    return read_frame(path)


def fit_table(frame: pd.DataFrame, choices: TableChoices) -> TableReport:
    """Fit all rows, and cross-validate: by environment where a column is named, else in five random folds."""
    frame, notes = _treat_missing(frame, choices)
    x, y, environments = _split_columns(frame, choices)
    task: Task = guess_task(y) if choices.task == "auto" else cast(Task, choices.task)
    check_columns(x)
    check_target(y, task, environments)
    target = y.to_numpy(dtype=np.float64 if task == "regression" else None)
    template = _build_model(task, choices)
    with name_misfits():
        held_out = tuple(_cross_validate(template, x, target, environments, task))
        model = clone(template).fit(x, target)
        plain = model.fit_unweighted(x, target)
    notes += [f"taken together, as they determine each other: {names}" for names in _joint_columns(model)]
    return TableReport(choices, task, x, target, environments, model, plain, held_out, tuple(notes))


@contextmanager
def name_misfits() -> Iterator[None]:
    """Turn what an estimator refuses into one sentence about the table."""
    try:
        yield
    except UserError:
        raise
    except (ValueError, TypeError, ArithmeticError, np.linalg.LinAlgError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"the table cannot be fitted ({reason}): check its columns, or leave some out") from error


def check_columns(x: pd.DataFrame) -> None:
    """Numbers must be finite, and not so large that their squares are not."""
    for name, column in x.items():
        if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
            largest = float(column.abs().max()) if len(column) else 0.0
            if not largest < LARGEST:
                raise UserError(
                    f"the column {name!r} holds infinite numbers, or larger ones than {LARGEST:.0e}: correct or "
                    "rescale them, or leave the column out with --leave-out"
                )


def check_target(y: pd.Series[Any], task: Task, environments: Array | None) -> None:
    """Refuse a target that the task cannot have, and rows that cannot be divided for cross-validation."""
    if len(y) < 2 * FOLDS:
        raise UserError(f"the table has {len(y)} rows: at least {2 * FOLDS} are needed to fit and cross-validate it")
    numeric = pd.api.types.is_numeric_dtype(y) and not pd.api.types.is_bool_dtype(y)
    if task == "regression":
        if not pd.api.types.is_numeric_dtype(y):
            raise UserError(f"the target holds {y.iloc[0]!r}, which is no number: use --task classification")
        check_columns(y.to_frame())
        return
    if numeric and not bool((y == y.round()).all()):
        raise UserError(f"the target holds numbers such as {_first_fraction(y):g}, no classes: use --task regression")
    if y.map(type).nunique() > 1:
        raise UserError("the target mixes text and numbers: write its classes in one way")
    counts = y.value_counts()
    if len(counts) < 2:
        raise UserError(f"the target holds one class, {counts.index[0]!r}: at least two are needed")
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


def guess_task(y: pd.Series[Any]) -> Task:
    """Classes are words, booleans, or few different whole numbers."""
    if not pd.api.types.is_numeric_dtype(y) or pd.api.types.is_bool_dtype(y):
        return "classification"
    whole = bool((y == y.round()).all())
    return "classification" if whole and y.nunique() <= FEW_VALUES else "regression"


def _build_model(task: Task, choices: TableChoices) -> Any:
    kinds = METHODS[choices.method]
    if task not in kinds:
        raise UserError(f"the method {choices.method} is for classification only: choose stable, dwr or srdo")
    estimator = ESTIMATORS[choices.estimator][task]
    return kinds[task](estimator, categorical=list(choices.categorical) or "auto", random_state=choices.seed)


def _split_columns(frame: pd.DataFrame, choices: TableChoices) -> tuple[pd.DataFrame, pd.Series[Any], Array | None]:
    named = [choices.target, *([] if choices.environment is None else [choices.environment]), *choices.leave_out]
    for name in (*named, *choices.categorical):
        if name not in frame.columns:
            raise UserError(unknown_name("column", name, map(str, frame.columns)))
    if choices.environment == choices.target:
        raise UserError(f"{choices.target!r} is both target and environment: name two columns")
    x = frame.drop(columns=list(dict.fromkeys(named)))
    if x.shape[1] < 2:
        raise UserError(f"the table has {x.shape[1]} columns to learn from: at least two are needed")
    if choices.target in choices.leave_out:
        raise UserError(f"{choices.target!r} is the target: it cannot be left out")
    environments = None if choices.environment is None else frame[choices.environment].astype(str).to_numpy()
    return x, frame[choices.target], environments


def _treat_missing(frame: pd.DataFrame, choices: TableChoices) -> tuple[pd.DataFrame, list[str]]:
    if choices.target not in frame.columns:
        raise UserError(unknown_name("column", choices.target, map(str, frame.columns)))
    used = frame.drop(columns=[name for name in choices.leave_out if name in frame.columns])
    gaps = used.isna().sum()
    gaps = gaps[gaps > 0]
    if gaps.empty:
        return frame, []
    found = ", ".join(f"{name} ({count})" for name, count in gaps.items())
    if choices.missing == "error":
        raise UserError(f"missing values in {found}: use --missing drop or --missing fill, or --leave-out the column")
    must = used.columns if choices.missing == "drop" else [choices.target, choices.environment or choices.target]
    kept = frame[used[must].notna().all(axis=1)]
    notes = [f"missing values in {found}"]
    if len(kept) < len(frame):
        notes.append(f"{len(frame) - len(kept)} rows left out for missing values")
    return (kept, notes) if choices.missing == "drop" else (_fill(kept), [*notes, "gaps filled"])


def _fill(frame: pd.DataFrame) -> pd.DataFrame:
    filled = frame.copy()
    for name, column in frame.items():
        if column.isna().any():
            numeric = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
            filled[name] = column.fillna(column.median()) if numeric else column.astype(object).fillna("(missing)")
    return filled


def _cross_validate(
    template: Any, x: pd.DataFrame, y: Array, environments: Array | None, task: Task
) -> Iterator[HeldOut]:
    for name, train, test in _folds(len(x), y, environments, task):
        model = clone(template).fit(x.iloc[train], y[train])
        plain = model.fit_unweighted(x.iloc[train], y[train])
        errors = [_error(m.predict(x.iloc[test]), y[test], task) for m in (plain, model)]
        yield HeldOut(name, len(test), *errors)


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
