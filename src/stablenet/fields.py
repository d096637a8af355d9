"""From plain values, as TOML and JSON have them, to settings dataclasses: unknown names and wrong types are named."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from stablenet.errors import UserError
from stablenet.registry import unknown_name

T = TypeVar("T")


def read_fields(kind: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """An instance of a dataclass from a mapping; nested tables become nested dataclasses.

    where: the dotted name of the table, for messages.
    """
    prefix = f"{where}." if where else ""
    hints = get_type_hints(kind)
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise UserError(unknown_name("setting", prefix + name, [prefix + k for k in known]))
    return kind(**{name: _convert(value, hints[name], prefix + name) for name, value in values.items()})


def _convert(value: Any, hint: Any, where: str) -> Any:
    """The value as the type hint wants it, or a UserError that names the setting."""
    origin, choices = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value not in choices:
            raise UserError(unknown_name(where, str(value), choices))
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(value, choices, where)
    if is_dataclass(hint) and isinstance(value, Mapping):
        return read_fields(hint, value, where)  # type: ignore[arg-type]
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_convert(item, choices[0], f"{where}[{k}]") for k, item in enumerate(value))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is Any or ((origin or hint) is dict and isinstance(value, Mapping)):
        return value
    plain = hint in (bool, int, float, str) and type(value) is hint
    if not plain:
        raise UserError(f"{where} must be {_describe(hint)}, got {value!r}")
    return value


def _convert_union(value: Any, choices: tuple[Any, ...], where: str) -> Any:
    if value is None and type(None) in choices:
        return None
    wanted = [choice for choice in choices if choice is not type(None)]
    if len(wanted) == 1:
        return _convert(value, wanted[0], where)  # it has the better message
    for choice in wanted:
        try:
            return _convert(value, choice, where)
        except UserError:
            continue
    raise UserError(f"{where} must be {' or '.join(map(_describe, wanted))}, got {value!r}")


def _describe(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    origin = get_origin(hint) or hint
    if origin is tuple:
        return "a list"
    if origin is dict or is_dataclass(hint):
        return "a table"
    return names.get(hint, str(hint))
