"""Generated inputs to the weighting: weights are finite, non-negative and sum to the batch, or the input is refused.

What was refused has not entered the memory: the next good batch gives finite weights, and so does the state.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from campaign.parts.signals import describe
from campaign.trial import Trial
from stablenet.errors import UserError
from stablenet.weighting import DatasetWeighting, StableWeighting, solve_dataset

INPUTS = 50  # of one trial, at least
BATCHES, COLLECTED = 5, 4  # through one module
FORMS = (
    "normal", "huge", "small", "constant", "nan", "inf", "twins", "integer", "double", "empty", "wide", "flat",
    "layers",
)  # fmt: skip
LABELS = (
    "classes", "columns", "none", "nan", "inf", "floats", "negative", "billion", "short", "bool", "no-columns", "text",
)  # fmt: skip


def make(rng: Random, workshop: Path, folder: Path) -> Trial:
    number = rng.randrange(10**9)
    return Trial(call=describe(partial(try_many, number), f"weighting inputs of seed {number}"), inputs=INPUTS)


def try_many(number: int) -> list[str]:
    rng, faults, tried = Random(number), [], 0
    while tried < INPUTS:
        seed = rng.randrange(10**9)
        try_one, inputs = rng.choice(((try_batches, BATCHES),) * 3 + ((try_whole_set, 1), (try_collect, COLLECTED)))
        faults += [f"{try_one.__name__}({seed}): {fault}" for fault in try_one(Random(seed))]
        tried += inputs
    return faults[:5]


def draw_features(rng: Random, rows: int, columns: int) -> Any:
    g = torch.Generator().manual_seed(rng.randrange(10**9))
    z = torch.randn(rows, columns, generator=g)
    form = rng.choice((*FORMS, *["normal"] * 4))
    place = (rng.randrange(max(rows, 1)), rng.randrange(columns))
    if form in ("nan", "inf") and rows:
        z[place] = float(form)
    made: dict[str, Any] = {
        "huge": z * 1e30,
        "small": z * 1e-30,
        "constant": torch.ones(rows, columns),
        "twins": z[:, :1].expand(rows, columns),
        "integer": z.long(),
        "double": z.double() * 1e200,
        "empty": z[:0],
        "flat": z[:, 0],
        "wide": z[:, :, None],
        "layers": {"a": z, "b": z * 1e10},
    }
    return made.get(form, z)


def draw_labels(rng: Random, rows: int) -> Any:
    kind = rng.choice((*LABELS, "classes", "classes", "classes", "columns"))
    classes = torch.tensor([rng.randrange(3) for _ in range(rows)], dtype=torch.long)
    columns = torch.nn.functional.one_hot(classes, 3).float() if rows else torch.zeros(0, 3)
    broken = columns.clone()
    if kind in ("nan", "inf") and rows:
        broken[rng.randrange(rows), 0] = float(kind)
    made: dict[str, Any] = {
        "columns": columns,
        "none": None,
        "nan": broken,
        "inf": broken,
        "floats": classes.float(),
        "negative": classes - 1,
        "billion": classes + rng.choice((10**9, 2**40)),
        "short": classes[:-1],
        "bool": classes > 0,
        "no-columns": columns[:, :0],
        "text": ["a"] * rows,
    }
    return made.get(kind, classes)


def draw_overrides(rng: Random) -> dict[str, Any]:
    choices: dict[str, tuple[Any, ...]] = {
        "pairs": ("features", "labels", "both"),
        "min_ess": (0.0, 0.2, 1.0),
        "num_functions": (0, 1, 5, 0.5),
        "memory": ("queue", "average"),
        "groups": (0, 1, 2),
        "steps": (1, 20, 60),
        "learning_rate": (1e-9, 0.05, 1.0, 1e6),
        "penalty": (0.0, 0.5, 1e9),
        "bandwidth": (1e-9, 1.0, 1e9, "median"),
        "scaling": ("none", "standard"),
        "objective": ("sum", "relative"),
        "logits": ("block", "joint"),
        "num_classes": (None, 1, 3),
        "momentum": (0.0, 0.9, 0.999),
    }
    return {name: rng.choice(choices[name]) for name in rng.sample(sorted(choices), k=rng.randrange(5))}


def try_batches(rng: Random) -> list[str]:
    """Five batches through one module, some of them bad."""
    preset, overrides = rng.choice(("recommended", "paper", "published")), draw_overrides(rng)
    try:
        weighting = StableWeighting(preset, seed=0, **overrides)
    except UserError:
        return []
    said, rows, columns = f"{preset} {overrides}", rng.choice((1, 2, 8, 16)), rng.choice((1, 2, 5))
    for _ in range(BATCHES):
        size = rows if rng.random() < 0.8 else rng.choice((1, 3, 20))
        fault = _try(weighting, draw_features(rng, size, columns), draw_labels(rng, size))
        if fault:
            return [f"{said}: {fault}"]
    return [f"{said}: {name} of the memory is not finite" for name in _find_broken(weighting)]


def _find_broken(module: torch.nn.Module) -> list[str]:
    floating = ((name, t) for name, t in module.state_dict().items() if isinstance(t, Tensor) and t.is_floating_point())
    return [name for name, tensor in floating if not bool(torch.isfinite(tensor).all())]


def _try(weighting: StableWeighting, features: Any, labels: Any) -> str:
    try:
        weights = weighting(features, labels=labels)
    except UserError as error:
        return "" if len(str(error)) > 10 else "empty message"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    settings = weighting.settings
    return _judge(weights, settings.min_ess if settings.logits == "block" else 0.0)


def _judge(weights: Tensor, min_ess: float) -> str:
    n = len(weights)
    if not bool(torch.isfinite(weights).all()) or bool((weights < 0).any()):
        return "weights are not finite or negative"
    if abs(float(weights.sum()) - n) > 1e-3 * n:
        return f"{n} weights sum to {float(weights.sum())}"
    ess = float(weights.double().sum() ** 2 / weights.double().square().sum()) / n
    return f"effective size {ess} below {min_ess}" if ess < min_ess * 0.99 - 1e-6 else ""


def try_whole_set(rng: Random) -> list[str]:
    rows = rng.choice((1, 2, 10, 40))
    overrides = draw_overrides(rng)
    try:
        solution = solve_dataset(draw_features(rng, rows, 3), draw_labels(rng, rows), **overrides)
    except UserError:
        return []
    except Exception as error:
        return [f"{overrides}: {type(error).__name__}: {str(error)[:150]}"]
    fault = _judge(solution.weights, 0.0)
    return [f"{overrides}: {fault}"] if fault else []


def try_collect(rng: Random) -> list[str]:
    """Batches by index, with indices of every kind."""
    weighting = DatasetWeighting(num_samples=12, steps=5)
    for _ in range(COLLECTED):
        size = rng.choice((4, 4, 6))
        index: Any = torch.tensor([rng.randrange(12) for _ in range(size)])
        others = (index.float(), index + 10, index - 12, index.tolist(), index[:1], index.bool())
        index = rng.choice((index, index, *others))
        try:
            weighting.collect(index, draw_features(rng, size, 3), draw_labels(rng, size))
        except UserError:
            continue
        except Exception as error:
            return [f"collect: {type(error).__name__}: {str(error)[:150]}"]
    try:
        weighting.solve()
        weights = weighting(torch.arange(12))
    except UserError:
        return []
    except Exception as error:
        return [f"solve: {type(error).__name__}: {str(error)[:150]}"]
    fault = _judge(weights, 0.0)
    return [f"after collect: {fault}"] if fault else []
