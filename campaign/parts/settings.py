"""Settings of a training: every field that can be set, with values of every kind.

What is accepted must be in the run's config as it was written, and every recorded figure must be finite or missing.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields, is_dataclass
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, get_args

from campaign.odd import draw_value
from campaign.trial import Ending, Trial
from campaign.workshop import tiny
from stablenet.algorithms import ALGORITHMS
from stablenet.data.augment import AugmentSettings
from stablenet.data.splits import SPLITS
from stablenet.engine.config import RunConfig
from stablenet.values import field_types
from stablenet.weighting import WeightingSettings

QUICK = ("erm", "stablenet", "mixup", "focal", "coral")  # of these, a step is cheap enough to be done often


def make(rng: Random, workshop: Path, folder: Path) -> Trial:
    method = rng.choice((*QUICK, *sorted(ALGORITHMS)))
    count = rng.choice((1, 1, 1, 2))
    chosen = {rng.choice(list_settings(method)): draw_value(rng) for _ in range(count)}
    words = ["train", "--method", method, "--device", "cpu", *tiny("train.max_steps=1")]
    if any(name.startswith("data.parameters.") for name in chosen) and rng.random() < 0.3:
        words += [
            "--root",
            str(workshop / "photos"),
            "--set",
            'data.source="folder"',
            "--set",
            'data.split="classic"',
        ]
    words += [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]
    words = [word.replace("\0", "") for word in words]
    return Trial(words=words, check=partial(check, chosen))


@cache
def list_settings(method: str) -> tuple[str, ...]:
    """Dotted names of all that can be set for a method, and some that cannot."""
    names = [*_list_fields(RunConfig, ""), "unknown", "train.unknown", "data", "train", "method", "method.parameters"]
    names += [f"method.parameters.{field.name}" for field in fields(ALGORITHMS[method].settings_type)] * 2
    if method == "stablenet":
        names += [f"method.parameters.overrides.{field.name}" for field in fields(WeightingSettings)] * 2
    names += [f"data.augmentation.{field.name}" for field in fields(AugmentSettings)]
    parameters = {field.name for name in SPLITS for field in fields(SPLITS[name].parameters)}
    return (*names, *(f"data.parameters.{name}" for name in sorted(parameters)))


def _list_fields(kind: Any, prefix: str) -> list[str]:
    names = []
    for name, hint in field_types(kind).items():
        inner = next((each for each in (hint, *get_args(hint)) if isinstance(each, type) and is_dataclass(each)), None)
        names += _list_fields(inner, f"{prefix}{name}.") if inner is not None else [prefix + name]
    return names


def check(chosen: dict[str, str], ending: Ending) -> str:
    """A refusal leaves nothing; what was accepted stands in the config."""
    runs = ending.folder / "runs"
    if ending.status == 2:
        # A run that failed while training keeps its folder, with the reason in its status.
        unexplained = [path for path in runs.glob("*") if not (path / "status.json").exists()]
        empty = [path for path in [runs] if runs.exists() and not any(runs.iterdir())]
        return f"left behind: {[path.name for path in (*unexplained, *empty)]}" if unexplained or empty else ""
    if ending.status != 0:
        return ""
    found = list(runs.glob("*/config.json"))
    if len(found) != 1:
        return f"{len(found)} run folders after a training"
    config = json.loads(found[0].read_text())["config"]
    for name, text in chosen.items():
        fault = _compare(config, name, text)
        if fault:
            return fault
    lines = (found[0].parent / "records.jsonl").read_text()
    return "a figure that is not JSON" if "NaN" in lines or "Infinity" in lines else ""


def _compare(config: dict[str, Any], name: str, text: str) -> str:
    try:
        wanted = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        wanted = text
    value: Any = config
    for key in name.split("."):
        if not isinstance(value, dict) or key not in value:
            return ""
        value = value[key]
    if isinstance(wanted, dict) or wanted == value or (isinstance(wanted, tuple | list) and list(wanted) == value):
        return ""
    if isinstance(wanted, int) and isinstance(value, float) and abs(wanted - Fraction(value)) * 2**53 <= abs(wanted):
        return ""  # the nearest number in double precision
    return f"silent change: {name}={text[:40]} became {value!r:.40}"
