"""A diagnosis of a table: which columns depend on the label and on each other, and what weights could remove.

In a table every column may be a cause, so the weights are those of `stablenet table fit`: they make the columns
independent of each other, not of the label.
"""

from __future__ import annotations

from collections.abc import Callable
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
from stablenet.tabular.encode import Encoding, encode, learn_encoding
from stablenet.tabular.estimator import MAX_CORRELATION
from stablenet.tabular.estimators import StableClassifier
from stablenet.tabular.reading import Array, DividedTable, TableQuestion, Task, divide_table, name_misfits, read_table
from stablenet.tabular.solve import FunctionSettings, SolveSettings, draw_functions, prepare_statistic, solve_table

FIFTHS = ("lowest fifth", "second fifth", "middle fifth", "fourth fifth", "highest fifth")
ROWS_TESTED = 5000  # of a large table, for the tests of single columns and pairs
STRONG_PAIR = 0.1  # weaker dependence of two columns need not be removed
MOST_SHOWN = 30
WEIGHTS_FROM = "solved as `stablenet table fit` solves them"


def diagnose_table(
    frame: pd.DataFrame,
    question: TableQuestion,
    name: str = "table",
    report: Callable[[str, int, int], None] | None = None,
) -> Diagnosis:
    """The same questions as for images, with the table's own columns as features."""
    with name_misfits():
        return _diagnose(frame, question, name, report)


def _diagnose(
    frame: pd.DataFrame, question: TableQuestion, name: str, report: Callable[[str, int, int], None] | None
) -> Diagnosis:
    table = divide_table(frame, question)
    x = table.x
    if len(x) < FEWEST:
        raise UserError(f"the table has {len(x)} rows to use: at least {FEWEST} are needed")
    codes, classes, notes = _read_target(table.y, table.task)
    y = torch.from_numpy(codes)
    design, encoding = _encode(x, question)
    trades, weights = _weigh(design, encoding, question.seed, report)
    numbers = encoding.number_columns(design)
    columns = _test_columns(numbers, encoding, y, question.seed)
    pairs, count = _test_pairs(numbers, encoding, question.seed)
    context = _study(table, question, y, design, weights)
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
        ids=tuple(str(name) for name in x.index),
        columns=tuple(columns),
        pairs=tuple(pairs),
        rows=tuple(_describe_rows(x)),
        notes=(*table.notes, *notes),
        verdict=judge_table(len(pairs), count, trades[-1], context, _lowest_class(weights, y)),
    )


def _read_target(y: pd.Series[Any], task: Task) -> tuple[Array, tuple[str, ...], list[str]]:
    """Codes (n,), class names and notes; numbers are cut into fifths, so that one way serves both."""
    if y.nunique() < 2:
        raise UserError(f"the column {y.name!r} holds one value: there is nothing to predict")
    if task == "regression":
        if not pd.api.types.is_numeric_dtype(y):
            raise UserError(f"the target holds {y.iloc[0]!r}, which is no number: use --task classification")
        codes = pd.qcut(y, len(FIFTHS), labels=False, duplicates="drop").to_numpy(np.int64)
        _, codes = np.unique(codes, return_inverse=True)
        return codes, FIFTHS[: codes.max() + 1], [f"{y.name} is a number: it was cut into fifths"]
    codes, names = pd.factorize(y, sort=True)
    return codes.astype(np.int64), tuple(map(str, names)), []


def _encode(x: pd.DataFrame, question: TableQuestion) -> tuple[Array, Encoding]:
    owner, chosen = StableClassifier(), [name for name in question.categorical if name in x.columns]
    table = read_table(owner, x, chosen)
    encoding = learn_encoding(owner, table, chosen, np.full(len(x), 1 / len(x)))
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
    table: DividedTable, question: TableQuestion, y: torch.Tensor, design: Array, weights: torch.Tensor
) -> ContextFindings | None:
    if table.environments is None:
        return None
    codes, names = pd.factorize(table.environments, sort=True)
    if len(names) < 2:
        raise UserError(f"the column {question.environment!r} holds one value: at least two are needed")
    context = torch.from_numpy(codes.astype(np.int64))
    return study_context(tuple(map(str, names)), context, y, torch.from_numpy(design), weights)


def _describe_rows(x: pd.DataFrame) -> list[str]:
    """The first few columns of every row, short enough for a page."""
    shown = x.iloc[:, :6]
    columns = [[f"{name} {_show(value)}" for value in shown[name]] for name in shown]
    return [" · ".join(parts) for parts in zip(*columns, strict=True)]


def _show(value: Any) -> str:
    if pd.isna(value):
        return "missing"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
