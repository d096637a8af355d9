"""Names of parts: registries, users' own modules and extras, and names of version 0.1 that still work.

A registry holds interchangeable parts by name: presets, data sources, methods. Users' own modules are imported by name
from the given folders first, then from Python's search path: unlike `python -m`, a console script does not search the
current folder.

What is now a split was called a setting in version 0.1: `data.setting` in configs, `setting` as a keyword and in
manifests; and the source `image-list` was called `table`. The old names still work, with one note on stderr; configs
and manifests that were stored then are read without one.
"""

from __future__ import annotations

import difflib
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypeVar

from stablenet.errors import UserError, shorten_path

T = TypeVar("T")
_SHOWN = 80  # characters of an unknown name in a message


class Registry(Generic[T]):
    """Maps names to parts: a duplicate name is an error, an unknown one suggests similar names."""

    def __init__(self, kind: str, renamed: Mapping[str, str] | None = None) -> None:
        """renamed: old names of parts, which are still found, with a note."""
        self._kind, self._renamed = kind, dict(renamed or {})
        self._parts: dict[str, T] = {}

    def add(self, name: str, part: T) -> T:
        if name in self._parts:
            raise ValueError(f"the {self._kind} name {name!r} is already taken")
        self._parts[name] = part
        return part

    def __getitem__(self, name: str) -> T:
        if name in self._renamed:
            note_renamed(f"the {self._kind} {name}", self._renamed[name])
            name = self._renamed[name]
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
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return hint + (f"choose from {', '.join(names)}" if names else "none are available")


_trusted: set[str] | None = None  # modules that may be imported; None for all


@contextmanager
def asking_for_trust(trusting: bool) -> Iterator[None]:
    """While the block runs, modules are imported only if they are trusted: their names may come from an untrusted file.

    A table, a config or a run folder names modules, and importing one executes it. From Python, the caller decides.
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
        with running_own(f"the module {name!r}"):
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


@contextmanager
def running_own(what: str) -> Iterator[None]:
    """While the block runs code of a user's own: an error of that code, or its end of the program, is a UserError.

    An import that fails and the errors of memory are left to the caller.
    """
    try:
        yield
    except (UserError, ImportError, MemoryError):
        raise
    except SystemExit as error:
        raise UserError(f"{what} ended the program with the status {error.code!r:.80}: remove that call") from error
    except Exception as error:
        raise UserError(f"{what} failed with {describe_error(error)}: correct it and try again") from error


def import_extra(name: str, extra: str, what: str) -> Any:
    """Import a module that only `pip install 'stablenet[extra]'` installs.   what: needs it, as a sentence begins."""
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise UserError(f"{what} needs {package}: install it with `pip install 'stablenet[{extra}]'`") from error


def describe_error(error: BaseException) -> str:
    """The kind and message of an error of other code, on one line, and where in the user's own code it was raised."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    where = find_own_line(error)
    return shorten_path(reason) + (f" ({where})" if where else "")


def find_own_line(error: BaseException) -> str:
    """The last place in a user's own modules on the way to an error, as `net.py, line 3`; "" if they took no part."""
    paths = sysconfig.get_paths()
    others = tuple(str(Path(place)) for place in (Path(__file__).parent, paths["stdlib"], paths["purelib"]))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(tuple(own_folders)) and not frame.filename.startswith(others):
            return f"{shorten_path(Path(frame.filename).name)}, line {frame.lineno}"
    return ""


own_folders: set[str] = set()  # in which users' own modules were searched


def search_folders(folders: Sequence[Path]) -> None:
    """Prepend folders to the import path, as Python does with a script's folder; those already on it stay in place."""
    own_folders.update(f"{folder}{os.sep}" for folder in folders)
    new = [place for place in dict.fromkeys(map(str, folders)) if place not in sys.path]
    sys.path[:0] = new


P = ParamSpec("P")
SPLIT, OLD_SPLIT = "split", "setting"
IMAGE_LIST, OLD_IMAGE_LIST = "image-list", "table"


@cache
def note_renamed(old: str, new: str) -> None:
    """Print that a name has changed, once per process."""
    print(f"note: {old} is now called {new}; the old name still works", file=sys.stderr)


def rename_data(values: Mapping[str, Any], note: bool = False) -> dict[str, Any]:
    """Config values with the present names in the table `data`.   note: whether a user has just written them."""
    data = values.get("data")
    if not isinstance(data, Mapping):
        return dict(values)
    renamed, changes = dict(data), []
    if OLD_SPLIT in data:
        renamed = {SPLIT: renamed.pop(OLD_SPLIT), **renamed}
        changes.append((f"data.{OLD_SPLIT}", f"data.{SPLIT}"))
    if data.get("source") == OLD_IMAGE_LIST:
        renamed["source"] = IMAGE_LIST
        changes.append((f"data.source={OLD_IMAGE_LIST}", f"data.source={IMAGE_LIST}"))
    for old, new in changes if note else ():
        note_renamed(old, new)
    return {**values, "data": renamed}


def hash_data(data: dict[str, Any]) -> dict[str, Any]:
    """The same values under the names of version 0.1, by which published runs and stored splits are hashed.

    >>> hash_data({"source": "image-list", "split": "given"})
    {'source': 'table', 'setting': 'given'}
    """
    old = {OLD_SPLIT if name == SPLIT else name: value for name, value in data.items()}
    return {**old, "source": OLD_IMAGE_LIST} if old["source"] == IMAGE_LIST else old


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


def old_function(old: str, function: Callable[P, T]) -> Callable[P, T]:
    """The function under its old name."""

    @wraps(function)
    def call(*args: P.args, **given: P.kwargs) -> T:
        note_renamed(old, function.__name__)
        return function(*args, **given)

    return call


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
