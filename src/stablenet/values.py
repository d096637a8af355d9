"""Validation of values written by users: their types, their bounds, and a clear message for a wrong value.

A settings dataclass declares both in its annotations and is checked once:

    @dataclass(frozen=True, kw_only=True)
    class SolverSettings:
        steps: Count = 20
        min_ess: Share = 0.2

        def __post_init__(self) -> None:
            check_fields(self)

`read_fields` builds one from plain values, as found in TOML and JSON, and prefixes the setting's name in every message
with the table's dotted name, including messages from `__post_init__`. All numbers must be finite; whole numbers fit 64
bits.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from stablenet.errors import UserError
from stablenet.registry import list_known

T = TypeVar("T")
LARGEST = 2**63 - 1  # of whole numbers: fits a 64-bit integer
LARGEST_COUNT = 10**9  # of steps, samples and the like
LONGEST_NAME = 100  # bytes; file systems allow 255, and the name of a run folder has further parts
DEEPEST = 20  # levels of nested tables
_SHOWN = 80  # characters of a wrong value in a message
_DIGITS = 18  # of a whole number in a command: fits a 64-bit integer


class SettingError(UserError):
    """An invalid value and the dotted name of its setting, extended as the error propagates out of nested tables."""

    def __init__(self, name: str, after: str, before: str = "") -> None:
        super().__init__(name, after, before)  # all arguments, so that it can be pickled
        self.name, self.after, self.before = name, after, before

    def __str__(self) -> str:
        return f"{self.before}{self.name}{self.after}"

    def within(self, table: str) -> SettingError:
        """The same error with the setting's name prefixed by `table`."""
        return SettingError(_join(table, self.name), self.after, self.before) if table else self


class Mark(Protocol):
    """A condition on a value of the right type, for use in `Annotated`."""

    def holds(self, value: Any) -> bool: ...

    def __str__(self) -> str: ...


@dataclass(frozen=True)
class AtLeast:
    low: float

    def holds(self, value: Any) -> bool:
        return bool(value >= self.low)

    def __str__(self) -> str:
        return "0 or more" if self.low == 0 else f"at least {self.low:,}"


@dataclass(frozen=True)
class AtMost:
    high: float

    def holds(self, value: Any) -> bool:
        return bool(value <= self.high)

    def __str__(self) -> str:
        return f"at most {self.high:,}"


@dataclass(frozen=True)
class Above:
    low: float

    def holds(self, value: Any) -> bool:
        return bool(value > self.low)

    def __str__(self) -> str:
        return "positive" if self.low == 0 else f"above {self.low:,}"


@dataclass(frozen=True)
class Between:
    """open_low, open_high: whether the bound itself is excluded."""

    low: float
    high: float
    open_low: bool = False
    open_high: bool = False

    def holds(self, value: Any) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        return bool(above and (value < self.high if self.open_high else value <= self.high))

    def __str__(self) -> str:
        if not self.open_low and not self.open_high:
            return f"between {self.low:,} and {self.high:,}"
        first = "above" if self.open_low else "at least"
        return f"{first} {self.low:,} and {'below' if self.open_high else 'at most'} {self.high:,}"


@dataclass(frozen=True)
class Plain:
    """A name that can be part of a file name."""

    def holds(self, value: Any) -> bool:
        fits = value.isprintable() and len(value.encode()) <= LONGEST_NAME
        return bool(fits and "/" not in value and not value.startswith("."))

    def __str__(self) -> str:
        return f"a plain name: printable, without '/', not starting with '.', at most {LONGEST_NAME} bytes"


@dataclass(frozen=True)
class Filled:
    """A non-empty list."""

    def holds(self, value: Any) -> bool:
        return len(value) > 0

    def __str__(self) -> str:
        return "a non-empty list"


Whole = Annotated[int, AtLeast(0), AtMost(LARGEST_COUNT)]
Count = Annotated[int, AtLeast(1), AtMost(LARGEST_COUNT)]
Seed = Annotated[int, AtLeast(0)]
NonNegative = Annotated[float, AtLeast(0)]
Positive = Annotated[float, Above(0)]
Share = Annotated[float, Between(0, 1)]
ShareBelowOne = Annotated[float, Between(0, 1, open_high=True)]
ShareAboveZero = Annotated[float, Between(0, 1, open_low=True)]
OpenShare = Annotated[float, Between(0, 1, open_low=True, open_high=True)]
PlainName = Annotated[str, Plain()]


def read_fields(kind: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Build a dataclass from a mapping; nested tables become nested dataclasses.

    where: the dotted name of the table, for messages.
    """
    read = read_values(kind, values, where)
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name not in read and field.default is MISSING and field.default_factory is MISSING:
            raise SettingError(_join(where, field.name), " is missing: it has no default")
    try:
        return kind(**read)
    except SettingError as error:
        raise error.within(where) from error


def read_values(kind: type[Any], values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Check and convert values for some of the fields of a dataclass."""
    owner: Any = kind
    hints = field_types(owner)
    for name in values:
        if name not in hints:
            raise _unknown_setting(name, list(hints), where)
    return {name: convert(value, hints[name], _join(where, name)) for name, value in values.items()}


def check_fields(instance: Any, where: str = "") -> None:
    """Check every field of a dataclass instance without changing it; to be called in `__post_init__`."""
    kind: Any = type(instance)
    for name, hint in field_types(kind).items():
        convert(getattr(instance, name), hint, _join(where, name))


def check_arguments(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """The same for a call: of its arguments, those that declare bounds or choices, or are true or false.

    given: the arguments by name, and whatever else; an estimator of scikit-learn keeps those of its constructor.
    """
    for name, hint in get_type_hints(function, include_extras=True).items():
        if _is_declared(hint):
            convert(given[name], hint, name)


def _is_declared(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_is_declared(choice) for choice in get_args(hint))
    return hint is bool or origin in (Annotated, Literal)


def require(holds: bool, name: str, expected: str, found: object) -> None:
    """Raise a SettingError saying that `name` must be `expected`, unless `holds`."""
    if not holds:
        raise SettingError(name, f" must be {expected}, got {show(found)}")


def convert(value: Any, hint: Any, where: str) -> Any:
    """Convert a value to its type hint, or raise a SettingError that names the setting."""
    origin, choices = get_origin(hint), get_args(hint)
    if origin is Annotated:
        require(isinstance(value, str) or choices[0] is not str, where, str(choices[1]), value)
        converted = convert(value, choices[0], where)
        for mark in choices[1:]:
            require(mark.holds(converted), where, str(mark), value)
        return converted
    if origin is Literal:
        return _choose(value, choices, where)
    if origin in (Union, types.UnionType):
        return _convert_union(value, choices, where)
    if is_dataclass(hint):
        return _convert_table(value, hint, where)
    if origin is tuple:
        return _convert_list(value, choices, where)
    if origin is list:
        return list(_convert_list(value, (choices[0], Ellipsis), where))
    if (origin or hint) in (dict, Mapping):
        return _convert_mapping(value, choices[1] if choices else Any, where)
    if hint is Any:
        return _check_plain(value, where)
    return _convert_scalar(value, hint, where)


def show(value: object) -> str:
    """A value formatted for a message: short and on one line."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a whole number of {value.bit_length()} bits"  # Python refuses to print long ones
    try:
        text = repr(value)
    except Exception:  # a long number in a list, or an object without a working repr
        return f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def is_text(value: str) -> bool:
    """Whether a string can be written as UTF-8: bytes of a command line or a file name that are no text cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_whole(text: str) -> bool:
    """Whether a text is a whole number of a few ASCII digits: `isdigit` alone also holds for "²", which is none.

    >>> is_whole("12"), is_whole("²"), is_whole("-1"), is_whole("9" * 5000)
    (True, False, False, False)
    """
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS


@cache
def field_types(kind: Any) -> dict[str, Any]:
    """The annotation of every field of a dataclass, bounds included."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


def _join(table: str, name: str) -> str:
    return f"{table}.{name}" if table else name


def _unknown_setting(name: object, known: list[str], where: str) -> SettingError:
    text = str(name)[:_SHOWN]
    printable = repr(_join(where, text))[1:-1]
    return SettingError(printable, f"': {list_known(text, known)}", "unknown setting '")


def _choose(value: Any, choices: tuple[Any, ...], where: str) -> Any:
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return choice
    if isinstance(value, str):
        raise SettingError(where, f" {show(value)}: {list_known(value[:_SHOWN], map(str, choices))}", "unknown ")
    raise SettingError(where, f" must be {' or '.join(map(repr, choices))}, got {show(value)}")


def _convert_union(value: Any, choices: tuple[Any, ...], where: str) -> Any:
    if value is None and type(None) in choices:
        return None
    wanted = [choice for choice in choices if choice is not type(None)]
    if len(wanted) == 1:
        return convert(value, wanted[0], where)  # for a more specific message
    for choice in wanted:
        try:
            return convert(value, choice, where)
        except UserError:
            continue
    raise SettingError(where, f" must be {' or '.join(map(_describe, wanted))}, got {show(value)}")


def _convert_table(value: Any, hint: Any, where: str) -> Any:
    if isinstance(value, hint):
        return value
    if not isinstance(value, Mapping):
        raise _wrong_type(value, hint, where)
    return read_fields(hint, value, where)


def _convert_list(value: Any, kinds: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _wrong_type(value, tuple, where)
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    require(len(value) == len(kinds), where, f"a list of {len(kinds)}", value)
    return tuple(convert(item, kind, f"{where}[{k}]") for k, (item, kind) in enumerate(zip(value, kinds, strict=True)))


def _convert_mapping(value: Any, kind: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong_type(value, dict, where)
    for name in value:
        require(isinstance(name, str) and is_text(name), where, "a table with text keys", value)
    return {name: convert(item, kind, _join(where, name)) for name, item in value.items()}


def _check_plain(value: Any, where: str, depth: int = 0) -> Any:
    """Check that an untyped value can be represented in JSON, so that it can be saved and hashed."""
    if depth > DEEPEST:
        raise SettingError(where, f" is nested too deeply: tables and lists may have at most {DEEPEST} levels")
    if isinstance(value, Mapping):
        for name, item in value.items():
            require(isinstance(name, str) and is_text(name), where, "a table with text keys", value)
            _check_plain(item, _join(where, name), depth + 1)
    elif isinstance(value, list | tuple):
        for k, item in enumerate(value):
            _check_plain(item, f"{where}[{k}]", depth + 1)
    elif value is not None:
        known = next((kind for kind in (bool, int, float, str) if isinstance(value, kind)), None)
        if known is None:
            raise SettingError(where, f" must be a number, text, true or false, a list or a table, got {show(value)}")
        _convert_scalar(value, known, where)
    return value


def _convert_scalar(value: Any, hint: Any, where: str) -> Any:
    if isinstance(value, bool):
        if hint is bool:
            return value
        raise _wrong_type(value, hint, where)
    if hint is int and isinstance(value, Integral):
        require(-LARGEST <= int(value) <= LARGEST, where, f"a whole number of at most {LARGEST:,}", value)
        return int(value)
    if hint is float and isinstance(value, Real):
        return _convert_float(value, where)
    if hint is str and isinstance(value, str):
        require("\0" not in value, where, "text without NUL", value)
        require(is_text(value), where, "text that is valid UTF-8", value)
        return value
    if hint is Path and isinstance(value, str | Path):
        require("\0" not in str(value), where, "a path without NUL", value)
        return Path(value)
    raise _wrong_type(value, hint, where)


def _convert_float(value: Real, where: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    require(math.isfinite(number), where, "a finite number", value)
    return number


def _wrong_type(value: Any, hint: Any, where: str) -> SettingError:
    return SettingError(where, f" must be {_describe(hint)}, got {show(value)}")


def _describe(hint: Any) -> str:
    origin = get_origin(hint)
    if origin is Annotated:
        base, *marks = get_args(hint)
        bounds = " and ".join(str(mark) for mark in marks if mark != AtMost(LARGEST_COUNT))
        return f"{_describe(base)} ({bounds})" if bounds else _describe(base)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in get_args(hint))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
    if (origin or hint) in (tuple, list):
        return "a list"
    if (origin or hint) in (dict, Mapping) or is_dataclass(hint):
        return "a table"
    return names.get(hint, str(hint))
