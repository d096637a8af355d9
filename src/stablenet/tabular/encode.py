"""From a table to numbers: numeric columns standardised, each category one block of one-hot columns.

Columns that determine each other are found before anybody asks for their independence. Weights can only redistribute
the rows there are: where two columns are near copies (temperature, felt temperature), or one follows from the other,
hardly a row shows one without the other, and asking for their independence costs effective sample size for nothing.
Such columns are taken together: as a group they are made independent of the rest, not of each other. On the bicycles of
results/tables that raises the effective sample from 24 to 37 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from scipy.sparse.csgraph import connected_components
from sklearn.utils.validation import check_array, validate_data
from torch import Tensor

from stablenet.errors import UserError
from stablenet.registry import unknown_name

Array = npt.NDArray[Any]
FEWEST_ROWS = 2


@dataclass(frozen=True)
class Block:
    """One column of the user's table and the columns of the design that came of it."""

    name: str
    start: int
    width: int
    categories: tuple[Any, ...] | None = None  # None for a numeric column

    @property
    def columns(self) -> slice:
        return slice(self.start, self.start + self.width)


@dataclass(frozen=True)
class Encoding:
    """What `encode` needs to treat new rows as the training rows were treated.

    blocks: one for each column of the table, in its order.   mean, scale: (d,) of the design's columns.
    """

    blocks: tuple[Block, ...]
    mean: Array
    scale: Array

    @property
    def width(self) -> int:
        return len(self.mean)

    @property
    def column_names(self) -> list[str]:
        """The design's columns: `age`, `town=Ulm`, …"""
        names: list[str] = []
        for block in self.blocks:
            names += [block.name] if block.categories is None else [f"{block.name}={c}" for c in block.categories]
        return names


def read_table(owner: Any, table: Any, categorical: str | Sequence[Any], reset: bool) -> pd.DataFrame | Array:
    """Check a user's table against scikit-learn's rules; a frame when it has categories, else floats (n, m).

    owner: the estimator, which learns or compares the number and names of the columns.
    """
    chosen = [] if isinstance(categorical, str) else list(categorical)
    if isinstance(categorical, str) and categorical != "auto":
        raise UserError(f"categorical is {categorical!r}: expected 'auto' or a list of column names or numbers")
    if isinstance(table, pd.DataFrame):
        frame = table
    elif chosen:
        frame = pd.DataFrame(np.asarray(table))
    else:
        return np.asarray(validate_data(owner, table, reset=reset, dtype=np.float64, ensure_min_samples=_fewest(reset)))
    validate_data(owner, table, reset=reset, skip_check_array=True)
    kinds = category_columns(frame, chosen)
    if len(frame) < _fewest(reset):
        raise UserError(f"found {len(frame)} sample(s): at least {FEWEST_ROWS} are needed to learn weights")
    return frame if any(kinds) else _numbers(owner, frame)


def _fewest(reset: bool) -> int:
    return FEWEST_ROWS if reset else 1


def category_columns(frame: pd.DataFrame, chosen: Sequence[Any] = ()) -> list[bool]:
    """Which columns are categories: those chosen, and all that are not numbers."""
    known = list(frame.columns)
    for name in chosen:
        if name not in known:
            raise UserError(unknown_name("column in categorical", str(name), map(str, known)))
    return [
        name in chosen or not pd.api.types.is_numeric_dtype(kind) or pd.api.types.is_bool_dtype(kind)
        for name, kind in zip(known, frame.dtypes, strict=True)
    ]


def learn_encoding(owner: Any, table: pd.DataFrame | Array, categorical: str | Sequence[Any], share: Array) -> Encoding:
    """The blocks of a table checked by `read_table`, and the means and spreads under the row shares (n,)."""
    frame = table if isinstance(table, pd.DataFrame) else None
    if frame is None:
        names = getattr(owner, "feature_names_in_", [f"x{i}" for i in range(table.shape[1])])
        blocks = [Block(str(name), i, 1) for i, name in enumerate(names)]
    else:
        kinds = category_columns(frame, [] if isinstance(categorical, str) else categorical)
        blocks = _frame_blocks(frame, kinds)
    width = blocks[-1].start + blocks[-1].width
    plain = Encoding(tuple(blocks), np.zeros(width), np.ones(width))
    return _scaled(plain, table if isinstance(table, np.ndarray) else encode(owner, table, plain), share)


def _frame_blocks(frame: pd.DataFrame, kinds: Sequence[bool]) -> list[Block]:
    blocks: list[Block] = []
    start = 0
    for (name, column), is_category in zip(frame.items(), kinds, strict=True):
        categories = None
        if is_category:
            _refuse_missing(str(name), column)
            categories = tuple(sorted(column.unique(), key=lambda value: (str(type(value)), value)))
        blocks.append(Block(str(name), start, 1 if categories is None else len(categories), categories))
        start += blocks[-1].width
    return blocks


def _scaled(plain: Encoding, design: Array, share: Array) -> Encoding:
    """Numeric columns get mean 0 and spread 1; constant ones become 0; one-hot columns stay as they are."""
    numeric = np.zeros(plain.width, dtype=bool)
    for block in plain.blocks:
        numeric[block.columns] = block.categories is None
    mean = np.where(numeric, share @ design, 0.0)
    # One column at a time: a table of a million rows is not copied whole.
    spread = np.array([np.sqrt(share @ (design[:, j] - mean[j]) ** 2) for j in range(plain.width)])
    size = np.array([np.abs(design[:, j]).max() for j in range(plain.width)])
    constant = spread <= 8 * np.finfo(np.float64).eps * size
    scale = np.where(numeric, np.where(constant, np.inf, spread), 1.0)
    return Encoding(plain.blocks, mean, scale)


def encode(owner: Any, table: pd.DataFrame | Array, encoding: Encoding) -> Array:
    """The design (n, d) of a table checked by `read_table`; a category not seen in training is all zeros."""
    if not isinstance(table, pd.DataFrame):
        return _standardise(table - encoding.mean, encoding)
    design = np.empty((len(table), encoding.width))
    for i, block in enumerate(encoding.blocks):
        column = table.iloc[:, i]
        if block.categories is None:
            design[:, block.start] = _numbers(owner, column.to_frame())[:, 0]
        else:
            _refuse_missing(block.name, column)
            values = column.to_numpy(dtype=object)
            for j, category in enumerate(block.categories):
                design[:, block.start + j] = values == category
    return _standardise(design - encoding.mean, encoding)


def _standardise(centred: Array, encoding: Encoding) -> Array:
    centred /= encoding.scale  # in place: the table may be large
    return centred


def _numbers(owner: Any, frame: pd.DataFrame) -> Array:
    values = check_array(frame, dtype=np.float64, estimator=owner, input_name="X", ensure_min_samples=1)
    return np.asarray(values)


def _refuse_missing(name: str, column: pd.Series[Any]) -> None:
    if column.isna().any():
        raise UserError(
            f"the column {name!r} holds {int(column.isna().sum())} missing values: drop those rows, or fill them, "
            "e.g. with sklearn.impute.SimpleImputer(strategy='most_frequent') before this estimator"
        )


RANK_TOLERANCE = 1e-6  # axes of a block with less than this share of its largest variance are rounding


def group_blocks(sigma: Tensor, owner: Tensor, size: float, limit: float) -> Tensor:
    """Join blocks with a canonical correlation above the limit, directly or through others.

    sigma: (k, k) covariance of all functions.   owner: (k,) the block each is a function of.   size: the number
    of rows; in few rows large correlations come by chance, and are adjusted for the functions as R² is.
    Returns (m,) the group of each block, numbered from 0.
    """
    count = int(owner.max()) + 1
    own = [(owner == i).nonzero().squeeze(1) for i in range(count)]
    sigma = sigma.to(torch.float64)
    white = [_whitening(sigma[columns][:, columns]) for columns in own]
    close = np.eye(count, dtype=bool)
    for i in range(count):
        for j in range(i + 1, count):
            cross = white[i].T @ sigma[own[i]][:, own[j]] @ white[j]
            free = size - sum(cross.shape)
            if cross.numel() and free > size / 2:  # with fewer rows there is no telling
                squared = float(torch.linalg.matrix_norm(cross, 2)) ** 2
                close[i, j] = 1 - (1 - squared) * size / free > limit**2
    _, groups = connected_components(close, directed=False)
    return torch.from_numpy(groups.astype(np.int64))


def _whitening(sigma: Tensor) -> Tensor:
    """W (k, r) with Wᵀ Σ W = 1, over the axes that have variance; r = 0 for constant blocks.   sigma: (k, k)."""
    values, axes = torch.linalg.eigh(sigma)
    kept = values > RANK_TOLERANCE * values.max().clamp_min(torch.finfo(values.dtype).tiny)
    whitening: Tensor = axes[:, kept] / values[kept].sqrt()
    return whitening
