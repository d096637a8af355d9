"""Modules of the user's own, by name: in the user's folders, then wherever Python looks.

A console script, unlike `python -m`, does not search the current folder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from stablenet.errors import UserError


def import_own(name: str, folders: Sequence[Path]) -> ModuleType:
    """Import `package.module`. folders: absolute; they stay importable, for what it imports later."""
    search_folders(folders)
    if not name or name.startswith("."):
        raise UserError(f"{name!r} is no name of a module, expected package.module")
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise UserError(f"the module {name!r} cannot be imported: {error}") from error
        places = " or ".join(map(str, folders))
        raise UserError(
            f"there is no module {error.name!r} in {places} or among the installed packages: put its file there, "
            "or add its folder to PYTHONPATH"
        ) from error
    except ImportError as error:
        raise UserError(f"the module {name!r} cannot be imported: {error}") from error


def search_folders(folders: Iterable[Path]) -> None:
    """Let imports search these folders first, as Python does with a script's own; those it searches stay in place."""
    new = [place for place in dict.fromkeys(map(str, folders)) if place not in sys.path]
    sys.path[:0] = new
