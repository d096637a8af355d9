"""Generated tables to the estimators: predictions are finite, or the table is refused in one sentence."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd

from campaign.parts.signals import describe
from campaign.trial import Trial
from stablenet import StableClassifier, StableRegressor
from stablenet.tabular import CRBRClassifier, DWRRegressor, SRDOClassifier

INPUTS = 6
COLUMNS = (
    "normal",
    "constant",
    "words",
    "mixed",
    "huge",
    "small",
    "bool",
    "nan",
    "inf",
    "integers",
    "objects",
    "dates",
)
TARGETS = ("numbers", "classes", "one-class", "words", "nan", "inf", "constant", "frame", "short", "mixed", "huge")


def make(rng: Random, workshop: Path, folder: Path) -> Trial:
    number = rng.randrange(10**9)
    return Trial(call=describe(partial(try_many, number), f"estimator inputs of seed {number}"), inputs=INPUTS)


def try_many(number: int) -> list[str]:
    rng = Random(number)
    seeds = [rng.randrange(10**9) for _ in range(INPUTS)]
    faults = [(seed, try_one(Random(seed))) for seed in seeds]
    return [f"try_one({seed}): {fault}" for seed, fault in faults if fault]


def try_one(rng: Random) -> str:
    rows = rng.choice((1, 3, 10, 30, 60))
    table, target = draw_table(rng, rows), draw_target(rng, rows)
    fast = {"max_evaluations": 10, "interactions": 5}
    model = rng.choice(
        (
            StableClassifier(**fast),
            StableRegressor(**fast),
            StableRegressor(**fast, features="network"),
            DWRRegressor(steps=20),
            SRDOClassifier(steps=10),
            CRBRClassifier(steps=20),
        )
    )
    said = type(model).__name__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            predicted = np.asarray(model.fit(table, target).predict(table))
        except (ValueError, TypeError) as error:  # the interface of scikit-learn knows these two
            return "" if len(str(error)) > 10 else f"{said}: empty message"
        except Exception as error:
            return f"{said}: {type(error).__name__}: {str(error)[:150]}"
    if not np.isfinite(model.weights_).all():
        return f"{said}: weights are not finite"
    if predicted.dtype.kind == "f" and not np.isfinite(predicted).all():
        return f"{said}: predictions are not finite"
    return ""


def draw_table(rng: Random, rows: int) -> Any:
    g = np.random.default_rng(rng.randrange(10**9))
    frame = pd.DataFrame({f"c{k}": _draw_column(rng, g, rows) for k in range(rng.choice((1, 2, 4)))})
    return frame.to_numpy() if rng.random() < 0.2 else frame


def _draw_column(rng: Random, g: np.random.Generator, rows: int) -> Any:
    x = g.normal(size=rows)
    made: dict[str, Any] = {
        "constant": np.ones(rows),
        "words": g.choice(["a", "b"], rows),
        "mixed": [rng.choice((1, "x", 2.5, True)) for _ in range(rows)],
        "huge": x * 1e300,
        "small": x * 1e-300,
        "bool": x > 0,
        "nan": np.where(g.random(rows) < 0.1, np.nan, x),
        "inf": np.where(g.random(rows) < 0.1, np.inf, x),
        "integers": g.integers(-(2**62), 2**62, rows),
        "objects": [rng.choice(((), "a", None)) for _ in range(rows)],
        "dates": pd.date_range("2026-01-01", periods=rows),
    }
    return made.get(rng.choice((*COLUMNS, "normal", "normal", "normal", "normal")), x)


def draw_target(rng: Random, rows: int) -> Any:
    g = np.random.default_rng(rng.randrange(10**9))
    x = g.normal(size=rows)
    made: dict[str, Any] = {
        "classes": g.integers(0, 2, rows),
        "one-class": np.zeros(rows, int),
        "words": g.choice(["a", "b"], rows),
        "nan": np.where(g.random(rows) < 0.1, np.nan, x),
        "inf": np.where(g.random(rows) < 0.1, np.inf, x),
        "constant": np.full(rows, 2.5),
        "frame": np.stack([x, x], 1),
        "short": x[:-1],
        "mixed": [rng.choice((1, "x")) for _ in range(rows)],
        "huge": x * 1e300,
    }
    return made.get(rng.choice((*TARGETS, "classes", "numbers")), x)
