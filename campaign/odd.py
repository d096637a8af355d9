"""Values, words and bytes that nobody asked for, drawn from a generator of the trial."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

WORDS = (
    "", " ", "²", "١", "[/b]", "[red]", ":smile:", "a/b", "../..", "-1", "nan", "None", "true", "TRUE", "Erm", "é" * 40,
    "x" * 300, "\udcff", "a\tb", "a\nb", "~", "$HOME", "%s%n", "{}", "0x10", "1e400", "1_000", "null", "'", '"', "\\",
    "con", ".", "..", "cuda:²", "cuda:99", "cuda:-1", "cpu:0", "mps", "stable net", "1,2,,3", "3;4", "=", "a=b=c",
)  # fmt: skip
NUMBERS = (
    "0", "-0.0", "-1", "1", "2", "1.5", "0.5", "1e-300", "1e300", "1e400", "-1e400", "inf", "-inf", "nan", "9" * 18,
    "9" * 19, "9" * 40, "1" + "0" * 5000, "0b1", "1e9", "2147483648", "1e-5", "0.9999999999", "123456789",
)  # fmt: skip
TOML = (
    "[]", "[1]", "[[]]", "{}", "{a=1}", "true", "false", '""', '"\\u0000"', "1979-05-27", "07:32:00",
    "1979-05-27T07:32:00Z", "[1,2,3]", '["a"]', "[nan]", "[1e400]", "{a={b={c={}}}}", "[" * 50 + "]" * 50,
    '"' + "x" * 300 + '"', '"[/b]"', '"a/b"', '"\\ud800"', "[true, 1]", '[1, "a"]',
)  # fmt: skip


def draw_value(rng: Random) -> str:
    """The text of a value as one would write it after `--set key=`."""
    return rng.choice((_number, _number, lambda r: r.choice(TOML), lambda r: r.choice(WORDS), _drawn))(rng)


def draw_word(rng: Random) -> str:
    """One word of a command line."""
    return rng.choice((*WORDS, *NUMBERS)).replace("\0", "")


def _number(rng: Random) -> str:
    return rng.choice(NUMBERS)


def _drawn(rng: Random) -> str:
    """A number of any size, or a list of such."""
    if rng.random() < 0.3:
        return "[" + ", ".join(_drawn(rng) for _ in range(rng.randrange(4))) + "]"
    number = rng.uniform(-1, 1) * 10 ** rng.randint(-12, 12)
    return str(round(number)) if rng.random() < 0.5 else repr(number)


def draw_json(rng: Random, depth: int = 0) -> Any:
    """Any value that JSON can hold."""
    if depth < 3 and rng.random() < 0.3:
        items = [draw_json(rng, depth + 1) for _ in range(rng.randrange(4))]
        return items if rng.random() < 0.5 else {rng.choice(WORDS[:-8]) or "a": item for item in items}
    return rng.choice((None, True, False, 0, -1, 1.5, 10**30, "", "x" * 300, "[/b]", "nan", -5, 2**63, "a/b"))


def mutate_json(rng: Random, value: Any) -> Any:
    """The value with one place changed, removed or doubled."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        name = rng.choice(sorted(value))
        roll = rng.random()
        if roll < 0.2:
            return {key: item for key, item in value.items() if key != name}
        if roll < 0.3:
            return {**value, rng.choice(("extra", "", "[/b]")): draw_json(rng)}
        return {**value, name: mutate_json(rng, value[name])}
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = rng.randrange(len(value))
        roll = rng.random()
        if roll < 0.2:
            return value[:place] + value[place + 1 :]
        return [*value[:place], mutate_json(rng, value[place]), *value[place + (roll < 0.8) :]]
    return draw_json(rng)


Garble = Callable[[Random, bytes], bytes]


def _cut(rng: Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _flip(rng: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 30))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _double(rng: Random, data: bytes) -> bytes:
    start, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[:end] + data[start:]


def _zero(rng: Random, data: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    length = min(len(data) - start, rng.randrange(1, 400))
    return data[:start] + bytes(length) + data[start + length :]


def _latin(rng: Random, data: bytes) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + "äöü".encode("latin-1") + data[place:]


def _wide(rng: Random, data: bytes) -> bytes:
    return data.decode(errors="replace").encode("utf-16")


def _noise(rng: Random, data: bytes) -> bytes:
    return rng.randbytes(rng.choice((1, 100, 5000)))


def _other(rng: Random, data: bytes) -> bytes:
    return rng.choice(
        (b"", b"{}", b"[]", b"null", b"\n", b"a,b\n1,2\n", b"PK\x05\x06" + bytes(18), b"\x89PNG\r\n\x1a\n")
    )


def _lines(rng: Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    rng.shuffle(lines)
    return b"\n".join(lines[: rng.randrange(len(lines) + 1)])


GARBLES: tuple[Garble, ...] = (_cut, _flip, _flip, _double, _zero, _latin, _wide, _noise, _other, _lines)


def garble(rng: Random, data: bytes) -> bytes:
    """The bytes of a file with one kind of damage."""
    return rng.choice(GARBLES)(rng, data)
