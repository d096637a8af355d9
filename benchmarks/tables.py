"""Tabular data: how long a fit takes, and what it gains in unseen environments.

    python benchmarks/tables.py speed [--rows 10000 100000 1000000]      bars: 10,000 × 50 in 10 s; 1,000,000 × 50 in
                                                                         600 s and 4 GiB on two cores; linear in rows
    python benchmarks/tables.py simulation [--structure independent] [--task regression] [--seeds 0 1 2 …]
    python benchmarks/tables.py bikes --data Bikeshare.csv

Each writes a JSON file into --out (results/tables) and prints a table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from rich.table import Table
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LassoCV, LinearRegression, LogisticRegression, RidgeCV
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from stablenet.tabular import (
    CRBRClassifier,
    DWRClassifier,
    DWRRegressor,
    SRDOClassifier,
    SRDORegressor,
    StableClassifier,
    StableRegressor,
)
from stablenet.tabular.ancestors import RATES, TRAINING_RATE, Simulation

COLUMNS = 50
PENALTIES = np.logspace(-3, 3, 13)  # chosen from by cross-validation inside the training environment


def main() -> None:
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    {"speed": measure_speed, "one-fit": print_one_fit, "simulation": simulate, "bikes": compare_bikes}[options.part](
        options
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["speed", "one-fit", "simulation", "bikes"])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 30_000, 100_000, 300_000, 1_000_000])
    parser.add_argument("--structure", default="independent")
    parser.add_argument("--misses", default="product")
    parser.add_argument("--task", choices=["regression", "classification"], default="regression")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/tables"))
    return parser.parse_args()


# Speed


def measure_speed(options: argparse.Namespace) -> None:
    """Every size in its own process, to measure its own peak memory."""
    found = []
    for rows in options.rows:
        command = [sys.executable, __file__, "one-fit", "--rows", str(rows), "--threads", str(options.threads)]
        load = os.getloadavg()[0]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found.append({**json.loads(printed.splitlines()[-1]), "load_before": load, "load_after": os.getloadavg()[0]})
        print(found[-1], flush=True)
    write(options.out / "speed.json", {"machine": describe_machine(options.threads), "fits": found})
    table = Table("rows", "seconds", "CPU seconds", "evaluations", "µs per row and evaluation", "peak GiB", "load")
    for f in found:
        per_row = f["cpu_seconds"] / f["rows"] / f["evaluations"] * 1e6
        load = f"{f['load_before']:.1f} → {f['load_after']:.1f}"
        numbers = f"{f['seconds']:.1f}", f"{f['cpu_seconds']:.0f}", str(f["evaluations"]), f"{per_row:.1f}"
        table.add_row(f"{f['rows']:,}", *numbers, f"{f['peak_gib']:.2f}", load)
    Console(width=120).print(table)


def print_one_fit(options: argparse.Namespace) -> None:
    from stablenet.tabular import solve

    rows = options.rows[0]
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, COLUMNS))
    x[:, 1:] += 0.5 * x[:, :-1]
    y = x[:, :5].sum(1) + generator.normal(size=rows)
    evaluations = 0
    original = solve.TableStatistic.value_and_gradient

    def counted(self: Any, w: Any) -> Any:
        nonlocal evaluations
        evaluations += 1
        return original(self, w)

    solve.TableStatistic.value_and_gradient = counted  # type: ignore[method-assign]
    start, cpu = time.perf_counter(), time.process_time()
    model = StableRegressor().fit(x, y)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    print(
        json.dumps(
            {
                "rows": rows,
                "columns": COLUMNS,
                "num_functions": model.num_functions,
                "interactions": model.interactions,
                "seconds": seconds,
                "cpu_seconds": cpu_seconds,
                "evaluations": evaluations,
                "dependence_left": model.dependence_after_ / model.dependence_before_,
                "ess_share": model.ess_ / rows,
                "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            }
        )
    )


def describe_machine(threads: int) -> dict[str, Any]:
    return {
        "processor": platform.processor() or platform.machine(),
        "threads": threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


# The selection-bias simulation


def regressors(seed: int) -> dict[str, Any]:
    """All end in ordinary least squares except Lasso and ridge, which choose their penalty by cross-validation."""
    return {
        "OLS": LinearRegression(),
        "Lasso": LassoCV(random_state=seed),
        "Ridge": RidgeCV(PENALTIES),
        "DWR": DWRRegressor(LinearRegression(), random_state=seed),
        "SRDO": SRDORegressor(LinearRegression(), random_state=seed),
        "ours, pairs only": StableRegressor(LinearRegression(), interactions=0, random_state=seed),
        "ours": StableRegressor(LinearRegression(), random_state=seed),
        "ours, network features": StableRegressor(LinearRegression(), features="network", random_state=seed),
    }


def classifiers(seed: int) -> dict[str, Any]:
    return {
        "logistic": LogisticRegression(),
        "logistic, C chosen": GridSearchCV(LogisticRegression(), {"C": PENALTIES}),
        "DWR": DWRClassifier(random_state=seed),
        "SRDO": SRDOClassifier(random_state=seed),
        "CRBR": CRBRClassifier(random_state=seed),
        "ours, pairs only": StableClassifier(interactions=0, random_state=seed),
        "ours": StableClassifier(random_state=seed),
        "ours, network features": StableClassifier(features="network", random_state=seed),
    }


def simulate(options: argparse.Namespace) -> None:
    """Train where r = 1.7, 2,000 rows; test in ten environments of 2,000 rows."""
    world = Simulation(structure=options.structure, misses=options.misses)
    regression = options.task == "regression"
    records = []
    for seed in options.seeds:
        generator = np.random.default_rng(seed)
        train = world.draw(2000, TRAINING_RATE, generator)
        tests = {rate: world.draw(2000, rate, generator) for rate in RATES}
        if regression:
            models = regressors(seed)
        else:
            models = classifiers(seed)
            train = train[0], train[1] > 0
            tests = {rate: (x, y > 0) for rate, (x, y) in tests.items()}
        for name, model in models.items():
            errors = evaluate(model, train, tests, root_mean_square if regression else error_rate)
            records.append({"seed": seed, "model": name, "errors": errors, **describe_fit(model)})
    stem = "-".join([options.task, options.structure, options.misses])
    write(options.out / f"simulation-{stem}.json", {"rows": 2000, "columns": 10, "records": records})
    show(f"{stem}, {len(options.seeds)} seeds", records)


def evaluate(model: Any, train: Any, tests: dict[Any, Any], metric: Callable[..., float]) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(*train)
    return {str(name): metric(model.predict(x), y) for name, (x, y) in tests.items()}


def root_mean_square(predicted: Any, y: Any) -> float:
    return float(np.sqrt(np.mean((predicted - y) ** 2)))


def error_rate(predicted: Any, y: Any) -> float:
    return float(np.mean(predicted != y))


def describe_fit(model: Any) -> dict[str, float]:
    """The weights' effective sample size and the remaining dependence; the coefficient of V_b."""
    inner = getattr(model, "best_estimator_", getattr(model, "estimator_", model))
    told = {"last_coefficient": float(np.ravel(inner.coef_)[-1])}
    if hasattr(model, "ess_"):
        told["ess_share"] = model.ess_ / len(model.weights_)
        told["dependence_left"] = model.dependence_after_ / model.dependence_before_
    return told


# A real table


def compare_bikes(options: argparse.Namespace) -> None:
    """Hourly bicycle rentals in one city and year; the seasons are the environments.

    Train on one season, test on the three others; then train on three, test on the fourth.
    """
    if options.data is None:
        raise SystemExit("--data is needed: Bikeshare.csv from the package ISLP (see results/tables/README.md)")
    frame = pd.read_csv(options.data)
    seasons = frame["season"].to_numpy()
    y = np.log1p(frame["bikers"].to_numpy())
    x = frame[["temp", "atemp", "hum", "windspeed", "holiday", "workingday"]].astype(float)
    for name in ("hr", "weekday", "weathersit"):
        x[name] = frame[name].astype(str)
    found: dict[str, list[dict[str, Any]]] = {"train on one season": [], "train on three seasons": []}
    for season in np.unique(seasons):
        own = seasons == season
        for name, model in bike_models(x).items():
            others = {s: (x[seasons == s], y[seasons == s]) for s in np.unique(seasons) if s != season}
            errors = evaluate(clone(model), (x[own], y[own]), others, root_mean_square)
            found["train on one season"].append({"season": int(season), "model": name, "errors": errors})
            errors = evaluate(clone(model), (x[~own], y[~own]), {season: (x[own], y[own])}, root_mean_square)
            found["train on three seasons"].append({"season": int(season), "model": name, "errors": errors})
    write(options.out / "bikes.json", found)
    for title, records in found.items():
        show_pooled(title, records)


def bike_models(x: pd.DataFrame) -> dict[str, Any]:
    categories = [name for name, kind in x.dtypes.items() if not pd.api.types.is_numeric_dtype(kind)]
    encoder = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), categories), remainder=StandardScaler(), sparse_threshold=0
    )
    return {
        "OLS": make_pipeline(encoder, LinearRegression()),
        "Lasso": make_pipeline(encoder, LassoCV()),
        "Ridge": make_pipeline(encoder, RidgeCV(PENALTIES)),
        "DWR": DWRRegressor(),
        "SRDO": SRDORegressor(),
        "ours, pairs only": StableRegressor(interactions=0),
        "ours": StableRegressor(),
        "ours, network features": StableRegressor(features="network"),
    }


# Showing


def show(title: str, records: list[dict[str, Any]]) -> None:
    """Mean, spread and worst over environments, each averaged over the seeds, ± the sample deviation over seeds."""
    table = Table(
        "model", "mean", "spread", "worst environment", "weight of V_b", "ESS", "dependence left", title=title
    )
    for name, group in by_model(records):
        errors = np.array([list(record["errors"].values()) for record in group])
        cells = [spread_of(errors.mean(1)), spread_of(errors.std(1, ddof=1)), spread_of(errors.max(1))]
        for key in ("last_coefficient", "ess_share", "dependence_left"):
            values = [record[key] for record in group if key in record]
            cells.append(f"{np.mean(values):.2f}" if values else "–")
        table.add_row(name, *cells)
    Console(width=120).print(table)


def show_pooled(title: str, records: list[dict[str, Any]]) -> None:
    """Over all pairs of training and test season: mean, sample deviation, worst."""
    table = Table("model", "mean", "spread", "worst", title=title)
    for name, group in by_model(records):
        errors = np.array([error for record in group for error in record["errors"].values()])
        table.add_row(name, f"{errors.mean():.3f}", f"{errors.std(ddof=1):.3f}", f"{errors.max():.3f}")
    Console(width=120).print(table)


def by_model(records: list[dict[str, Any]]) -> Iterable[tuple[str, list[dict[str, Any]]]]:
    for name in dict.fromkeys(record["model"] for record in records):
        yield name, [record for record in records if record["model"] == name]


def spread_of(values: Any) -> str:
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else f"{values[0]:.3f}"


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
