"""Registries of interchangeable parts by name: presets, data sources, methods."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from stablenet.errors import UserError

T = TypeVar("T")
_SHOWN = 80  # characters of an unknown name in a message


class Registry(Generic[T]):
    """Maps names to parts: a duplicate name is an error, an unknown one suggests similar names."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._parts: dict[str, T] = {}

    def add(self, name: str, part: T) -> T:
        if name in self._parts:
            raise ValueError(f"the {self._kind} name {name!r} is already taken")
        self._parts[name] = part
        return part

    def __getitem__(self, name: str) -> T:
        if name not in self._parts:
            raise UserError(unknown_name(self._kind, name, self._parts))
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Error message for an unregistered name, with similar names first."""
    shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"
    return f"unknown {kind} {shown!r}: {list_known(shown, known)}"


def list_known(name: str, known: Iterable[str]) -> str:
    """The names to choose from instead of an unknown one, similar names first."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return hint + (f"choose from {', '.join(names)}" if names else "none are available")
