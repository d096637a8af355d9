"""Where a hyper-parameter search looks, and what it draws there."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

from stablenet.engine.assemble import read_toml
from stablenet.engine.config import RunConfig, merge
from stablenet.errors import UserError

Range = Mapping[str, list[Any]]  # one of times, log, linear, choices -> its numbers
_KINDS = ("times", "log", "linear", "choices")
_DIGITS = 3  # of a drawn number: a chosen value is to be read and typed again


def find_space(method: str, file: Path | None = None) -> dict[str, Range]:
    """Settings to search for a method and their ranges.   file: an own one, in the form of `spaces.toml`."""
    spaces = read_toml(file) if file is not None else _load()
    space = {**spaces.get("common", {}), **spaces.get(method, {})}
    for name, found in space.items():
        _check(name, found)
    if not space:
        raise UserError(f"the search space has nothing for {method}: add a table [common] or [{method}]")
    return space


def draw_trial(space: Mapping[str, Range], config: RunConfig, key: str) -> dict[str, Any]:
    """Nested config values, the same for the same key.   config: the run as the recipe has it."""
    generator, values = Random(key), dict[str, Any]()
    for name, found in sorted(space.items()):
        ((kind, numbers),) = found.items()
        drawn: Any = _draw(generator, kind, numbers, name, config)
        for part in reversed(name.split(".")):
            drawn = {part: drawn}
        values = merge(values, drawn)
    return values


def _draw(generator: Random, kind: str, numbers: list[Any], name: str, config: RunConfig) -> Any:
    if kind == "choices":
        return generator.choice(numbers)
    low, high = numbers
    if kind == "linear":
        return _shorten(generator.uniform(low, high))
    drawn = math.exp(generator.uniform(math.log(low), math.log(high)))
    return _shorten(drawn * _read(config, name) if kind == "times" else drawn)


def _shorten(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _read(config: RunConfig, name: str) -> float:
    """A setting's value in the config."""
    found: Any = config.plain()
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    if not isinstance(found, int | float):
        raise UserError(f"the search space multiplies {name}, which has no number in the config: give a log range")
    return float(found)


def _check(name: str, found: Any) -> None:
    known = isinstance(found, Mapping) and len(found) == 1 and next(iter(found)) in _KINDS
    numbers = next(iter(found.values())) if known else None
    if not isinstance(numbers, list) or not numbers:
        raise UserError(f"the search space of {name} must be one of {', '.join(_KINDS)} with a list, got {found!r}")
    kind = next(iter(found))
    if kind == "choices":
        return
    ordered = len(numbers) == 2 and numbers[0] < numbers[1] and (kind == "linear" or numbers[0] > 0)
    if not ordered:
        raise UserError(f"the range {kind} of {name} must be two rising numbers (positive but for linear): {numbers}")


@cache
def _load() -> dict[str, Any]:
    return tomllib.loads(files("stablenet.bench").joinpath("spaces.toml").read_text(encoding="utf-8"))
