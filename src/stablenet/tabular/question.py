"""What `stablenet table fit` and `stablenet diagnose` ask about a table, and the table divided accordingly."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pandas as pd

from stablenet.errors import UserError
from stablenet.frames import read_frame
from stablenet.registry import unknown_name
from stablenet.tabular.reading import FEW_VALUES, Array, TableWarning, is_number, read_columns

Task = Literal["regression", "classification"]
TASKS = ("auto", "regression", "classification")
MISSING = ("mark", "drop", "error")
LARGEST = 1e100  # of a column: its square is still a number


@dataclass(frozen=True, kw_only=True)
class TableQuestion:
    """Which columns play which part.

    target: to predict.   environment: names the context (site, year, …).   leave_out: columns not looked at.
    categorical: numbers that are categories.   missing: "mark" gaps as the estimators do, "drop" their rows, "error".
    """

    target: str
    environment: str | None = None
    task: str = "auto"  # or "regression", "classification"
    leave_out: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    missing: str = "mark"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (("task", TASKS), ("missing", MISSING)):
            if getattr(self, name) not in known:
                raise UserError(unknown_name(name, getattr(self, name), known))

    @property
    def parts(self) -> list[str]:
        """The columns that are not learned from, besides those left out."""
        return [self.target] if self.environment is None else [self.target, self.environment]


@dataclass(frozen=True)
class DividedTable:
    """x: the columns to learn from.   environments: (n,) text.   notes: what to know before reading any numbers."""

    x: pd.DataFrame
    y: pd.Series[Any]
    environments: Array | None
    task: Task
    notes: tuple[str, ...]


def read_csv(path: Path) -> pd.DataFrame:
    """A comma-separated table with a header."""
    return read_frame(path)


def divide_table(frame: pd.DataFrame, question: TableQuestion) -> DividedTable:
    """The columns by their part: numbers as numbers, gaps treated as asked."""
    _check_names(frame, question)
    used = frame.drop(columns=[name for name in question.leave_out if name != question.environment])
    used, notes = _treat_missing(used, question)
    x, found = read_columns(used.drop(columns=question.parts), _chosen(question))
    if x.shape[1] < 2:
        raise UserError(f"the table has {x.shape[1]} columns to learn from: at least two are needed")
    check_columns(x)
    y = _read_target(used[question.target])
    task = guess_task(y) if question.task == "auto" else cast(Task, question.task)
    environments = None if question.environment is None else used[question.environment].astype(str).to_numpy()
    empty = [f"the column {name!r} holds one value, and says nothing" for name in x if x[name].nunique() < 2]
    return DividedTable(x, y, environments, task, (*notes, *found, *empty))


@contextmanager
def name_misfits() -> Iterator[None]:
    """Turn what an estimator refuses into one sentence; its warnings are among the notes of `divide_table`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TableWarning)
            yield
    except UserError:
        raise
    except (ValueError, TypeError, ArithmeticError, np.linalg.LinAlgError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"the table cannot be fitted ({reason}): check its columns, or leave some out") from error


def check_columns(x: pd.DataFrame) -> None:
    """Numbers must be finite, and not so large that their squares are not."""
    for name, column in x.items():
        if is_number(column) and bool(column.notna().any()) and not float(column.abs().max()) < LARGEST:
            raise UserError(
                f"the column {name!r} holds infinite numbers, or larger ones than {LARGEST:.0e}: correct or "
                "rescale them, or leave the column out with --leave-out"
            )


def guess_task(y: pd.Series[Any]) -> Task:
    """Classes are words, booleans, or few different whole numbers."""
    if not is_number(y):
        return "classification"
    whole = bool((y == y.round()).all())
    return "classification" if whole and y.nunique() <= FEW_VALUES else "regression"


def _chosen(question: TableQuestion) -> list[str]:
    return [name for name in question.categorical if name not in (*question.parts, *question.leave_out)]


def _check_names(frame: pd.DataFrame, question: TableQuestion) -> None:
    for name in (*question.parts, *question.leave_out, *question.categorical):
        if name not in frame.columns:
            raise UserError(unknown_name("column", name, map(str, frame.columns)))
    if question.environment == question.target:
        raise UserError(f"{question.target!r} is both target and environment: name two columns")
    if question.target in question.leave_out:
        raise UserError(f"{question.target!r} is the target: it cannot be left out")


def _treat_missing(used: pd.DataFrame, question: TableQuestion) -> tuple[pd.DataFrame, list[str]]:
    """The rows to use, and what was done; a row without its target or environment cannot be used."""
    gaps = used.isna().sum()
    gaps = gaps[gaps > 0]
    if gaps.empty:
        return used, []
    found = f"missing values in {', '.join(f'{name} ({count})' for name, count in gaps.items())}"
    if question.missing == "error":
        raise UserError(f"{found}: use --missing mark or --missing drop, or --leave-out the column")
    must = list(used.columns) if question.missing == "drop" else question.parts
    kept = used[used[must].notna().all(axis=1)]
    notes = [found]
    if len(kept) < len(used):
        notes.append(f"{len(used) - len(kept)} rows left out for missing values")
    if bool(kept.isna().any(axis=None)):
        notes.append("gaps lie at their column's mean and are marked by a column of their own")
    return kept, notes


def _read_target(y: pd.Series[Any]) -> pd.Series[Any]:
    """The target as numbers where it holds many of them, however they are stored."""
    if pd.api.types.is_numeric_dtype(y) or y.nunique() <= FEW_VALUES:
        return y
    numbers = pd.to_numeric(y, errors="coerce")
    return y if numbers.isna().any() else numbers
