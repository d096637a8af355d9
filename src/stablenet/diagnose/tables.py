"""A diagnosis of a table: which columns depend on the label and on each other, and what weights could remove.

In a table every column may be a cause, so the weights are those of `stablenet table fit`: they make the columns
independent of each other, not of the label.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from stablenet.diagnose.measure import (
    STRENGTHS,
    ContextFindings,
    Trade,
    effective_share,
    measure_explained,
    one_hot,
    read_own,
    share_left,
    study_context,
)
from stablenet.diagnose.subject import FEWEST
from stablenet.diagnose.verdict import SIGNIFICANT, ColumnFinding, Diagnosis, Pair, judge_table
from stablenet.errors import UserError
from stablenet.independence import independence_test, pairwise_independence_test
from stablenet.registry import unknown_name
from stablenet.tabular.encode import Array, Encoding, encode, learn_encoding, read_table
from stablenet.tabular.estimator import MAX_CORRELATION
from stablenet.tabular.estimators import StableClassifier
from stablenet.tabular.fit import check_columns, guess_task, name_misfits
from stablenet.tabular.functions import FunctionSettings, draw_functions, prepare_statistic
from stablenet.tabular.solve import SolveSettings, solve_table

FIFTHS = ("lowest fifth", "second fifth", "middle fifth", "fourth fifth", "highest fifth")
ROWS_TESTED = 5000  # of a large table, for the tests of single columns and pairs
STRONG_PAIR = 0.1  # weaker dependence of two columns need not be removed
MOST_SHOWN = 30
WEIGHTS_FROM = "solved as `stablenet table fit` solves them"


@dataclass(frozen=True, kw_only=True)
class TableQuestion:
    """label: the column to predict.   context: a column that names the context.   leave_out: columns not looked at."""

    label: str
    context: str | None = None
    leave_out: tuple[str, ...] = ()
    seed: int = 0


def diagnose_table(
    frame: pd.DataFrame,
    choices: TableQuestion,
    name: str = "table",
    report: Callable[[str, int, int], None] | None = None,
) -> Diagnosis:
    """The same questions as for images, with the table's own columns as features."""
    with name_misfits():
        return _diagnose(frame, choices, name, report)


def _diagnose(
    frame: pd.DataFrame, choices: TableQuestion, name: str, report: Callable[[str, int, int], None] | None
) -> Diagnosis:
    x, codes, classes, notes = _split(frame, choices)
    check_columns(x)
    y = torch.from_numpy(codes)
    design, encoding = _encode(x)
    trades, weights = _weigh(design, encoding, choices.seed, report)
    numbers = _number_columns(design, encoding)
    columns = _test_columns(numbers, encoding, y, choices.seed)
    pairs, count = _test_pairs(numbers, encoding, choices.seed)
    context = _study(frame, choices, y, design, weights)
    whole = measure_explained(torch.from_numpy(design), one_hot(y))
    return Diagnosis(
        name=name,
        classes=classes,
        y=y,
        features=f"the {x.shape[1]} columns of the table",
        whole=whole,
        trades=tuple(trades),
        weights=weights,
        weights_from=WEIGHTS_FROM,
        context=context,
        scores=read_own(whole.scores, y),
        ids=tuple(str(name) for name in frame.index),
        columns=tuple(columns),
        pairs=tuple(pairs),
        rows=tuple(_describe_rows(x)),
        notes=tuple(notes),
        verdict=judge_table(len(pairs), count, trades[-1], context, _lowest_class(weights, y)),
    )


def _split(frame: pd.DataFrame, choices: TableQuestion) -> tuple[pd.DataFrame, Array, tuple[str, ...], list[str]]:
    named = [choices.label, *([] if choices.context is None else [choices.context]), *choices.leave_out]
    for column in named:
        if column not in frame.columns:
            raise UserError(unknown_name("column", column, map(str, frame.columns)))
    gaps = frame.columns[frame.isna().any()].difference(list(choices.leave_out))
    if len(gaps):
        raise UserError(f"missing values in {', '.join(map(str, gaps))}: fill them, or --leave-out those columns")
    x = frame.drop(columns=named)
    if x.shape[1] < 2 or len(frame) < FEWEST:
        raise UserError(f"the table has {len(frame)} rows and {x.shape[1]} columns: at least {FEWEST} and 2 are needed")
    return (x, *_read_label(frame[choices.label]))


def _read_label(label: pd.Series[Any]) -> tuple[Array, tuple[str, ...], list[str]]:
    """Codes (n,), class names and notes; numbers are cut into fifths, so that one way serves both."""
    if guess_task(label) == "regression":
        codes = pd.qcut(label, len(FIFTHS), labels=False, duplicates="drop").to_numpy(np.int64)
        _, codes = np.unique(codes, return_inverse=True)
        return codes, FIFTHS[: codes.max() + 1], [f"{label.name} is a number: it was cut into fifths"]
    codes, names = pd.factorize(label, sort=True)
    if len(names) < 2:
        raise UserError(f"the column {label.name!r} holds one value: there is nothing to predict")
    return codes.astype(np.int64), tuple(map(str, names)), []


def _encode(x: pd.DataFrame) -> tuple[Array, Encoding]:
    owner = StableClassifier()
    table = read_table(owner, x, "auto", reset=True)
    encoding = learn_encoding(owner, table, "auto", np.full(len(x), 1 / len(x)))
    return encode(owner, table, encoding), encoding


def _weigh(
    design: Array, encoding: Encoding, seed: int, report: Callable[[str, int, int], None] | None
) -> tuple[list[Trade], torch.Tensor]:
    ones = np.ones(len(design))
    functions = draw_functions(encoding, FunctionSettings(seed=seed))
    statistic = prepare_statistic(design, encoding, functions, ones, MAX_CORRELATION)
    before = float(statistic.value_and_gradient(torch.from_numpy(ones))[0])
    weights = torch.from_numpy(solve_table(statistic, ones, SolveSettings()))
    trades = []
    for strength in STRENGTHS:
        part = 1 + strength * (weights - 1)
        after = float(statistic.value_and_gradient(part)[0])
        trades.append(Trade(strength, share_left(before, after), effective_share(part)))
    if report is not None:
        report("solving weights", 1, 1)
    return trades, weights


def _lowest_class(weights: torch.Tensor, y: torch.Tensor) -> float:
    """The mean weight of the class that loses most."""
    classes = one_hot(y)
    return float((classes.T @ weights / classes.sum(0)).min())


def _number_columns(design: Array, encoding: Encoding) -> Array:
    """One number per column of the table (n, m); a category enters by its place."""
    columns = [
        design[:, block.columns].argmax(1) if block.categories else design[:, block.start] for block in encoding.blocks
    ]
    return np.column_stack(columns).astype(np.float64)


def _draw_rows(count: int, seed: int) -> Array:
    return np.random.default_rng(seed).permutation(count)[:ROWS_TESTED]


def _test_columns(numbers: Array, encoding: Encoding, y: torch.Tensor, seed: int) -> list[ColumnFinding]:
    rows = _draw_rows(len(numbers), seed)
    labels = one_hot(y)[rows]
    labels = labels[:, labels.sum(0) > 0]
    result = independence_test(numbers[rows], labels, method="asymptotic", adjustment="holm")
    strengths, p_values = result.strength.amax(1).tolist(), result.p_value.amin(1).tolist()
    found = [
        ColumnFinding(block.name, strength, p)
        for block, strength, p in zip(encoding.blocks, strengths, p_values, strict=True)
    ]
    return sorted(found, key=lambda column: -column.strength)[:MOST_SHOWN]


def _test_pairs(numbers: Array, encoding: Encoding, seed: int) -> tuple[list[Pair], int]:
    """Pairs that clearly depend on each other, strongest first, and the number of all pairs."""
    result = pairwise_independence_test(numbers[_draw_rows(len(numbers), seed)])
    names = [block.name for block in encoding.blocks]
    pairs = [
        Pair(names[i], names[j], float(result.strength[i, j]), float(result.p_value[i, j]))
        for i in range(len(names))
        for j in range(i + 1, len(names))
    ]
    plain = [pair for pair in pairs if pair.p_value <= SIGNIFICANT and pair.strength >= STRONG_PAIR]
    return sorted(plain, key=lambda pair: -pair.strength), len(pairs)


def _study(
    frame: pd.DataFrame, choices: TableQuestion, y: torch.Tensor, design: Array, weights: torch.Tensor
) -> ContextFindings | None:
    if choices.context is None:
        return None
    codes, names = pd.factorize(frame[choices.context].astype(str), sort=True)
    if len(names) < 2:
        raise UserError(f"the context column {choices.context!r} holds one value: at least two are needed")
    context = torch.from_numpy(codes.astype(np.int64))
    return study_context(tuple(map(str, names)), context, y, torch.from_numpy(design), weights)


def _describe_rows(x: pd.DataFrame) -> list[str]:
    """The first few columns of every row, short enough for a page."""
    shown = x.iloc[:, :6]
    columns = [
        [f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for value in shown[name]]
        for name in shown
    ]
    return [" · ".join(parts) for parts in zip(*columns, strict=True)]
