"""Import users' own modules by name, from the given folders first, then from Python's search path; and extras.

Unlike `python -m`, a console script does not search the current folder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from stablenet.errors import UserError

_trusted: set[str] | None = None  # modules that may be imported; None for all


@contextmanager
def asking_for_trust(trusting: bool) -> Iterator[None]:
    """While the block runs, modules are imported only if they are trusted: their names may be a stranger's.

    A table, a config or a run folder names modules, and importing one executes it. From Python, whoever calls decides.
    trusting: the user trusts all.
    """
    global _trusted
    before, _trusted = _trusted, None if trusting else set()
    try:
        yield
    finally:
        _trusted = before


def trust_module(name: str) -> None:
    """The user has typed the module's name."""
    if _trusted is not None:
        _trusted.add(name)


def import_own(name: str, folders: Sequence[Path]) -> ModuleType:
    """Import `package.module`. folders: absolute; they stay on the search path, for later imports."""
    if not name or name.startswith("."):
        raise UserError(f"{name!r} is not a module name, expected package.module")
    if _trusted is not None and name not in _trusted:
        raise UserError(
            f"the module {name!r} is to be imported, which executes it: if you trust it, and the file that names it, "
            "say so with `stablenet --trust`, before the verb"
        )
    search_folders(folders)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise UserError(f"the module {name!r} cannot be imported: {error}") from error
        places = " or ".join(map(str, folders))
        raise UserError(
            f"no module {error.name!r} in {places} or among the installed packages: put its file there, "
            "or add its folder to PYTHONPATH"
        ) from error
    except ImportError as error:
        raise UserError(f"the module {name!r} cannot be imported: {error}") from error


def import_extra(name: str, extra: str, what: str) -> Any:
    """Import a module that only `pip install 'stablenet[extra]'` installs.   what: needs it, as a sentence begins."""
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise UserError(f"{what} needs {package}: install it with `pip install 'stablenet[{extra}]'`") from error


def search_folders(folders: Iterable[Path]) -> None:
    """Prepend folders to the import path, as Python does with a script's folder; those already on it stay in place."""
    new = [place for place in dict.fromkeys(map(str, folders)) if place not in sys.path]
    sys.path[:0] = new
