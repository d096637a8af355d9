"""A user's table: which columns are numbers and which are categories, what is unusual, and what is to be predicted.

Imputers, and CSV files with one stray word, turn numbers into text or objects. Treated as categories they would
silently become hundreds of columns, so they are read as numbers, or refused.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.utils.validation import check_array, validate_data

from stablenet.errors import UserError
from stablenet.frames import read_frame
from stablenet.registry import unknown_name
from stablenet.values import require

Array = npt.NDArray[Any]
Table = pd.DataFrame | Array
FEWEST_ROWS = 2
FEW_VALUES = 10  # different numbers that may be names of classes
MANY_CATEGORIES, MOST_CATEGORIES = 50, 1000  # of one column: worth a warning; more than can be made independent
IDENTIFIER_SHARE, IDENTIFIER_ROWS = 0.9, 20  # different values per row, in at least this many rows
_PADDED = re.compile(r"0\d")  # a postcode or an identifier: written as text on purpose


class TableWarning(UserWarning):
    """A remark about a table that matters before trusting a fit."""


def read_table(owner: Any, table: Any, categorical: str | Sequence[Any]) -> Table:
    """Check a training table by scikit-learn's rules; a frame when it has categories, else floats (n, m).

    owner: the estimator, which learns the number and names of the columns. Gaps stay NaN.
    """
    chosen = read_choice(categorical)
    if not isinstance(table, pd.DataFrame) and not chosen:
        return _check_numbers(owner, table, reset=True, least=FEWEST_ROWS)
    validate_data(owner, table, reset=True, skip_check_array=True)
    frame, notes = read_columns(_as_frame(table), chosen)
    if len(frame) < FEWEST_ROWS:
        raise UserError(f"found {len(frame)} sample(s): at least {FEWEST_ROWS} are needed to learn weights")
    if notes:
        warnings.warn("; ".join(notes), TableWarning, stacklevel=3)
    return frame if any(category_columns(frame, chosen)) else check_numbers(owner, frame)


def read_rows(owner: Any, table: Any, *, mixed: bool) -> Table:
    """Check rows to predict.   mixed: whether the training table had categories."""
    if not mixed and not isinstance(table, pd.DataFrame):
        return _check_numbers(owner, table, reset=False, least=1)
    validate_data(owner, table, reset=False, skip_check_array=True)
    return _as_frame(table) if mixed else check_numbers(owner, table)


def read_choice(categorical: str | Sequence[Any]) -> list[Any]:
    """The columns named as categories, from an estimator's parameter."""
    if isinstance(categorical, str) and categorical == "auto":
        return []
    listed = isinstance(categorical, Iterable) and not isinstance(categorical, str)
    require(listed, "categorical", "'auto' or a list of column names or numbers", categorical)
    return list(categorical)


def read_columns(frame: pd.DataFrame, chosen: Sequence[Any] = ()) -> tuple[pd.DataFrame, list[str]]:
    """The frame with numbers as numbers, and warnings about it.   chosen: columns that are categories."""
    for name in chosen:
        if name not in list(frame.columns):
            raise UserError(unknown_name("column in categorical", str(name), map(str, frame.columns)))
    columns = [_check_categories(column) if name in chosen else _settle(column) for name, column in frame.items()]
    notes = [
        note for (name, old), new in zip(frame.items(), columns, strict=True) for note in _describe(old, new, chosen)
    ]
    return pd.concat(columns, axis=1) if columns else frame, notes


def category_columns(frame: pd.DataFrame, chosen: Sequence[Any] = ()) -> list[bool]:
    """Which columns of a frame from `read_columns` are categories: those chosen, and all that are not numbers."""
    return [name in chosen or not is_number(column) for name, column in frame.items()]


def is_number(column: pd.Series[Any]) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def check_numbers(owner: Any, frame: pd.DataFrame) -> Array:
    """Floats (n, m) of a frame whose columns must all be numbers; gaps are NaN."""
    numbers = {i: _as_numbers(column) for i, (_, column) in enumerate(frame.items())}
    values = check_array(
        pd.DataFrame(numbers),
        dtype=np.float64,
        estimator=owner,
        input_name="X",
        ensure_min_samples=1,
        ensure_all_finite="allow-nan",
    )
    return np.asarray(values)


def _check_numbers(owner: Any, table: Any, *, reset: bool, least: int) -> Array:
    checks = {"dtype": np.float64, "ensure_min_samples": least, "ensure_all_finite": "allow-nan"}
    try:
        return np.asarray(validate_data(owner, table, reset=reset, **checks))
    except ValueError as error:
        text = _find_text(table)
        if text is None:
            raise
        raise UserError(
            f"the array holds text, such as {text!r}: pass a data frame, whose columns are numbers or categories each; "
            "a step before gives one with set_output(transform='pandas')"
        ) from error


def _find_text(table: Any) -> str | None:
    """A cell of an array that is text and no number, such as those an imputer makes of a frame with categories."""
    if not isinstance(table, np.ndarray | list):
        return None
    cells = pd.Series(np.asarray(table, object).ravel())
    odd = cells[pd.to_numeric(cells, errors="coerce").isna()]
    return next((cell for cell in odd if isinstance(cell, str)), None)


def _as_frame(table: Any) -> pd.DataFrame:
    return table if isinstance(table, pd.DataFrame) else pd.DataFrame(np.asarray(table))


def _settle(column: pd.Series[Any]) -> pd.Series[Any]:
    """The column as numbers if it holds numbers, however they are stored; else as it is, if it can be categories."""
    if pd.api.types.is_numeric_dtype(column) or isinstance(column.dtype, pd.CategoricalDtype):
        return _check_categories(column)
    known = column.dropna()
    kinds = _find_kinds(known)
    if kinds == {"truth"} or (kinds == {"text"} and known.str.match(_PADDED).any()):
        return column
    parsed = pd.to_numeric(known, errors="coerce")
    odd = known[parsed.isna()]
    if odd.empty and "truth" not in kinds:
        return _spread(parsed, column)
    if len(kinds) > 1 or odd.nunique() < FEW_VALUES < known.nunique() - odd.nunique():
        stray = (odd if len(odd) else known).iloc[0]
        raise UserError(
            f"the column {column.name!r} mixes numbers with values such as {stray!r}: correct them, leave those cells "
            f"empty, leave the column out, or name it in categorical"
        )
    return column


def _check_categories(column: pd.Series[Any]) -> pd.Series[Any]:
    if not pd.api.types.is_numeric_dtype(column):
        _find_kinds(column.dropna())
    return column


def _find_kinds(known: pd.Series[Any]) -> set[str]:
    """The kinds of values in a column without gaps; others cannot be categories, nor be saved."""
    found = {kind: _name_kind(kind) for kind in set(map(type, known))}
    for kind, name in found.items():
        if not name:
            raise UserError(
                f"the column {known.name!r} holds values of type {kind.__name__}, such as {known.iloc[0]!s:.40}: "
                f"write them as numbers or text (of a date, its year or month), or leave the column out"
            )
    return set(found.values())


def _name_kind(kind: type) -> str:
    if issubclass(kind, bool | np.bool_):
        return "truth"
    if issubclass(kind, Real | Decimal):
        return "number"
    return "text" if issubclass(kind, str) else ""


def _spread(parsed: pd.Series[Any], column: pd.Series[Any]) -> pd.Series[Any]:
    values = np.full(len(column), np.nan)
    values[column.notna().to_numpy()] = parsed.to_numpy(np.float64)
    return pd.Series(values, index=column.index, name=column.name)


def _as_numbers(column: pd.Series[Any]) -> pd.Series[Any]:
    settled = column if is_number(column) else _settle(column)
    if not is_number(settled):
        raise UserError(
            f"the column {column.name!r} holds {settled.dropna().iloc[0]!r}: a number is expected, as in training"
        )
    return settled


def _describe(old: pd.Series[Any], new: pd.Series[Any], chosen: Sequence[Any]) -> Iterator[str]:
    name, rows = str(new.name), len(new)
    if is_number(new) and not is_number(old) and bool(old.notna().any()):
        yield f"the column {name!r} is stored as text or objects and is read as numbers"
    is_category = old.name in chosen or not is_number(new)
    different = new.nunique() if is_category or pd.api.types.is_integer_dtype(new) else 0
    if is_category and different > MOST_CATEGORIES:
        raise UserError(
            f"the column {name!r} has {different:,} categories: at most {MOST_CATEGORIES:,} can be made independent, "
            "so group them or leave the column out"
        )
    if rows >= IDENTIFIER_ROWS and _looks_like_identifier(new, is_category, different):
        yield f"the column {name!r} has its own value in nearly every row, like an identifier: leave the column out"
    elif is_category and different > MANY_CATEGORIES:
        yield f"the column {name!r} has {different} categories, each a column of its own: group them, or leave it out"


def _looks_like_identifier(column: pd.Series[Any], is_category: bool, different: int) -> bool:
    """Categories nearly all different, or whole numbers without repetition and without a hole."""
    if is_category:
        return different >= IDENTIFIER_SHARE * len(column)
    return different == len(column) and int(column.max()) - int(column.min()) == len(column) - 1


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
    empty = [f"the column {name!r} holds one value and carries no information" for name in x if x[name].nunique() < 2]
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
    """Numbers must be finite, and so must their squares."""
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
