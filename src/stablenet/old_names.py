"""Names of version 0.1 that still work, each with one note on stderr.

A way to split data was called a setting: `data.setting` in configs, `setting` as a keyword and in manifests. Configs
and manifests that were stored then are read without a note.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
SPLIT, OLD_SPLIT = "split", "setting"


@cache
def note_renamed(old: str, new: str) -> None:
    """Say that a name is an old one, once in a process."""
    print(f"note: {old} is now called {new}; the old name still works", file=sys.stderr)


def rename_split(values: Mapping[str, Any], note: bool = False) -> dict[str, Any]:
    """Config values with `data.setting` under its present name.   note: whether a user has just written them."""
    renamed, data = dict(values), values.get("data")
    if isinstance(data, Mapping) and OLD_SPLIT in data:
        others = {name: value for name, value in data.items() if name != OLD_SPLIT}
        renamed["data"] = {SPLIT: data[OLD_SPLIT], **others}
        if note:
            note_renamed(f"data.{OLD_SPLIT}", f"data.{SPLIT}")
    return renamed


def old_keyword(old: str, new: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator: a keyword of the function may still be given by its old name."""

    def wrap(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **given: P.kwargs) -> T:
            if old in given:
                note_renamed(old, new)
                given[new] = given.pop(old)  # also instead of the present value, in `dataclasses.replace`
            return function(*args, **given)

        return call

    return wrap


def old_field(old: str, new: str) -> Callable[[type[T]], type[T]]:
    """Decorator: a field of the dataclass may still be given and read by its old name."""

    def read(instance: T) -> Any:
        note_renamed(old, new)
        return getattr(instance, new)

    def wrap(kind: type[T]) -> type[T]:
        parts: dict[str, Any] = {"__init__": old_keyword(old, new)(kind.__init__), old: property(read)}
        for name, part in parts.items():
            setattr(kind, name, part)
        return kind

    return wrap
