"""One config out of a recipe, a TOML file and single settings, each overriding the one before."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stablenet.engine.config import RunConfig, merge, read_config
from stablenet.engine.recipes import find_recipe
from stablenet.errors import UserError
from stablenet.values import convert

Values = dict[str, Any]


def assemble_config(recipe: str | None = None, file: Path | None = None, settings: Iterable[str] = ()) -> RunConfig:
    """The recipe's values, then the file's, then `key=value` settings; the file may name a recipe of its own.

    A recipe's advice for single methods lies between the recipe and what the user says.
    """
    own = read_toml(file) if file is not None else {}
    for setting in settings:
        own = merge(own, parse_setting(setting))
    recipe = recipe or own.pop("recipe", None)
    own.pop("recipe", None)
    if recipe is None:
        return read_config(own)
    found = find_recipe(convert(recipe, str, "recipe"))
    values = merge({"label": recipe}, found.values)
    chosen = merge(values, own)
    said = chosen.get("method")
    method = str(said.get("name", "erm")) if isinstance(said, Mapping) else "erm"
    return read_config(merge(merge(values, found.methods.get(method, {})), own))


def read_toml(path: Path) -> Values:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the config {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits, and of deep lists
        raise UserError(f"the config {path} is not TOML: {error}") from error


def parse_setting(text: str) -> Values:
    """`train.epochs=3` as nested values; the value is TOML, and text where it is no TOML."""
    key, equals, value = text.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        raise UserError(f"the setting {text!r} is not like train.epochs=3")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):  # no TOML, or a number of thousands of digits, or lists without end
        parsed = value
    for name in reversed(names):
        parsed = {name: parsed}
    nested: Values = parsed
    return nested
