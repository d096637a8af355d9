"""A user's table: which columns are numbers and which are categories, and what is odd about them.

Numbers come as text or as objects out of imputers and of CSV files with one stray word. Taken for categories they would
become hundreds of columns without a word, so they are read as numbers, or refused.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.utils.validation import check_array, validate_data

from stablenet.errors import UserError
from stablenet.registry import unknown_name

Array = npt.NDArray[Any]
Table = pd.DataFrame | Array
FEWEST_ROWS = 2
FEW_VALUES = 10  # different numbers that may be names of classes
MANY_CATEGORIES, MOST_CATEGORIES = 50, 1000  # of one column: worth a warning; more than can be made independent
IDENTIFIER_SHARE, IDENTIFIER_ROWS = 0.9, 20  # different values to a row, in at least so many rows
_PADDED = re.compile(r"0\d")  # a postcode or an identifier: written as text on purpose


class TableWarning(UserWarning):
    """Something about a table that its owner should know before trusting a fit."""


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
    if isinstance(categorical, str):
        if categorical != "auto":
            raise UserError(f"categorical is {categorical!r}: expected 'auto' or a list of column names or numbers")
        return []
    return list(categorical)


def read_columns(frame: pd.DataFrame, chosen: Sequence[Any] = ()) -> tuple[pd.DataFrame, list[str]]:
    """The frame with numbers as numbers, and what its owner should know.   chosen: columns that are categories."""
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
    return np.asarray(validate_data(owner, table, reset=reset, **checks))


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
