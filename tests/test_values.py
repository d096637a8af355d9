"""Values written by users: types, bounds, and one sentence that names the setting and says what was expected."""

import math
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from stablenet.values import (
    Count,
    Filled,
    NonNegative,
    PlainName,
    Positive,
    SettingError,
    Share,
    check_arguments,
    check_fields,
    read_fields,
    read_values,
    require,
    show,
)


@dataclass(frozen=True, kw_only=True)
class Inner:
    low: int = 1
    high: int = 2

    def __post_init__(self):
        check_fields(self)
        require(self.low <= self.high, "high", f"at least low, {self.low}", self.high)


@dataclass(frozen=True, kw_only=True)
class Settings:
    steps: Count = 3
    share: Share = 0.5
    rate: Positive = 0.1
    name: PlainName = "plain"
    kind: Literal["a", "b"] = "a"
    taps: Annotated[tuple[str, ...], Filled()] = ("last",)
    pair: tuple[float, NonNegative] = (0.0, 1.0)
    limit: int | None = None
    flag: bool = False
    path: Path = Path("here")
    free: dict[str, Any] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self):
        check_fields(self)


def test_plain_values_become_what_the_annotations_say():
    found = read_fields(
        Settings,
        {"share": 1, "taps": ["x", "y"], "pair": [1, 2], "limit": 4, "path": "there", "inner": {"high": 7}},
    )
    assert found == Settings(
        share=1.0, taps=("x", "y"), pair=(1.0, 2.0), limit=4, path=Path("there"), inner=Inner(high=7)
    )
    assert isinstance(found.share, float)
    assert read_values(Settings, {"steps": 5}) == {"steps": 5}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step": 3}, "unknown setting 'method.step': did you mean 'steps' or "),
        ({"steps": 0}, "method.steps must be at least 1, got 0"),
        ({"steps": 2.5}, "method.steps must be a whole number, got 2.5"),
        ({"steps": True}, "method.steps must be a whole number, got True"),
        ({"steps": "3"}, "method.steps must be a whole number, got '3'"),
        ({"steps": 10**30}, "method.steps must be "),
        ({"share": 1.01}, "method.share must be between 0 and 1, got 1.01"),
        ({"share": math.nan}, "method.share must be "),
        ({"rate": 0}, "method.rate must be positive, got 0"),
        ({"rate": math.inf}, "method.rate must be "),
        ({"name": "a/b"}, "method.name must be a plain name"),
        ({"name": ".hidden"}, "method.name must be a plain name"),
        ({"kind": "c"}, "unknown method.kind 'c': choose from a, b"),
        ({"kind": 1}, "method.kind must be 'a' or 'b', got 1"),
        ({"taps": []}, "method.taps must be a non-empty list, got []"),
        ({"taps": "last"}, "method.taps must be a list, got 'last'"),
        ({"pair": [1.0]}, "method.pair must be "),
        ({"pair": [1.0, -1.0]}, "must be 0 or more, got -1.0"),
        ({"flag": 1}, "method.flag must be true or false, got 1"),
        ({"inner": 3}, "method.inner must be a table, got 3"),
        ({"inner": {"high": 0}}, "method.inner.high must be at least low, 1, got 0"),
        ({"inner": {"highest": 0}}, "unknown setting 'method.inner.highest': did you mean 'high'?"),
    ],
)
def test_a_wrong_value_is_one_sentence(values, message):
    with pytest.raises(SettingError) as caught:
        read_fields(Settings, values, "method")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # it crosses processes


def test_what_code_passes_is_checked_too():
    with pytest.raises(SettingError, match="steps must be at least 1, got 0"):
        Settings(steps=0)
    with pytest.raises(SettingError, match="share must be a number, got 'half'"):
        Settings(share="half")


def call(count: Count, rest: int, strength: NonNegative | None = None, kind: Literal["a", "b"] = "a", on: bool = True):
    check_arguments(call, locals())


def test_arguments_of_a_call_are_checked_where_they_declare_something():
    call(1, "anything", strength=0.5, kind="b", on=False)
    wrong = {
        "count must be at least 1, got 0": {"count": 0},
        "strength must be a finite number, got nan": {"strength": math.nan},
        "unknown kind 'c': choose from a, b": {"kind": "c"},
        "on must be true or false, got 'no'": {"on": "no"},
    }
    for message, given in wrong.items():
        with pytest.raises(SettingError, match=message):
            call(**{"count": 1, "rest": 1, **given})


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (10**40, "a whole number of 133 bits"),
        ("a\nb", r"'a\nb'"),
        ("x" * 200, "'" + "x" * 79 + "…"),
        ([1, 2], "[1, 2]"),
    ],
)
def test_wrong_values_are_shown_short_and_on_one_line(value, shown):
    assert show(value) == shown
