"""Every experiment of the paper by name, read from `recipes.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any

from stablenet.engine.config import merge
from stablenet.errors import UserError
from stablenet.registry import unknown_name


@dataclass(frozen=True)
class Recipe:
    """values: of the config.   methods: method -> what its own paper or code has otherwise.
    notes: choices made where the paper is silent.
    """

    name: str
    title: str
    values: Mapping[str, Any]
    methods: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...]


def find_recipe(name: str) -> Recipe:
    recipes = list_recipes()
    if name not in recipes:
        raise UserError(unknown_name("recipe", name, recipes))
    return recipes[name]


@cache
def list_recipes() -> dict[str, Recipe]:
    """All recipes by name, in the order of the file."""
    table = tomllib.loads(files("stablenet.engine").joinpath("recipes.toml").read_text(encoding="utf-8"))
    recipes: dict[str, Recipe] = {}
    for family in table["family"]:
        for recipe in _expand(family, table["base"][family["base"]]):
            if recipe.name in recipes:
                raise ValueError(f"the recipe {recipe.name} is written twice")
            recipes[recipe.name] = recipe
    return recipes


def _expand(family: Mapping[str, Any], base: Mapping[str, Any]) -> list[Recipe]:
    """One recipe for every combination of the family's choices."""
    choices: Mapping[str, list[Any]] = family.get("choices", {})
    recipes = []
    for combination in product(*choices.values()):
        chosen = dict(zip(choices, combination, strict=True))
        values = merge(base["values"], _fill(family.get("values", {}), chosen))
        name, title = family["name"].format(**chosen), family["title"].format(**chosen)
        recipes.append(Recipe(name, title, values, base.get("methods", {}), tuple(base.get("notes", ()))))
    return recipes


def _fill(value: Any, chosen: Mapping[str, Any]) -> Any:
    """Put the choices into text; text that is one choice alone becomes that choice, with its type."""
    if isinstance(value, Mapping):
        return {name: _fill(item, chosen) for name, item in value.items()}
    if isinstance(value, str):
        alone = value[1:-1] if value.startswith("{") and value.endswith("}") else ""
        return chosen[alone] if alone in chosen else value.format(**chosen)
    return value
