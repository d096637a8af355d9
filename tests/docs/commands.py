"""Whether a command could be typed: the verb and the options exist, the file, module, target or extra is there."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from itertools import pairwise

from stablenet.algorithms import ALGORITHMS
from stablenet.bench.paper_tables import list_tables
from stablenet.engine.config import list_recipes
from tests.docs.blocks import ROOT, split_words


class UnknownCommand(Exception):
    """Nobody could type this."""


def check_command(command: str) -> None:
    """Raises `UnknownCommand` with what is wrong."""
    words = split_words(command)
    check = CHECKS.get(words[0])
    if check is None:
        raise UnknownCommand(f"nothing is known of the program {words[0]!r}")
    check(words[1:])


def check_stablenet(words: list[str]) -> None:
    """Verbs, then options; a value after an option, and arguments, may be anything."""
    command = _commands()
    words = words[1:] if words[:1] == ["--trust"] else words
    while hasattr(command, "commands"):
        if not words or words[0].startswith(("-", "…")):
            break
        if words[0] not in command.commands:
            raise UnknownCommand(f"stablenet has no verb {words[0]!r}")
        command, words = command.commands[words[0]], words[1:]
    _check_names(command.name, words)
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    for word in words:
        if re.match(r"--?[a-z]", word) and word.split("=")[0] not in known:
            raise UnknownCommand(f"{command.name} has no option {word!r}")


def _check_names(verb: str, words: list[str]) -> None:
    """Recipes and methods that options name; tables of `bench` that stand first."""
    for word, value in pairwise(words):
        known = {"--recipe": list_recipes(), "--method": ALGORITHMS}.get(word)
        if known is not None and value not in set(known):
            raise UnknownCommand(f"there is no {word.removeprefix('--')} {value!r}")
    takes_tables = verb in ("plan", "run", "search", "status") and words and not words[0].startswith("-")
    if takes_tables and not words[0].endswith(".toml") and words[0] not in list_tables():
        raise UnknownCommand(f"there is no table {words[0]!r}")


@cache
def _commands():
    from typer.main import get_command

    from stablenet.cli.verbs import app

    return get_command(app)


def check_python(words: list[str]) -> None:
    if words[:2] == ["-m", "stablenet"]:
        check_stablenet(words[2:])
    elif words[0] == "-m" and words[1] in ("venv", "pytest"):
        return
    else:
        place = words[1].replace(".", "/") + ".py" if words[0] == "-m" else words[0]
        package = place.removesuffix(".py") + "/__main__.py"
        if not (ROOT / place).is_file() and not (words[0] == "-m" and (ROOT / package).is_file()):
            raise UnknownCommand(f"there is no {place}")


def check_torchrun(words: list[str]) -> None:
    check_python(words[words.index("-m") :])


def check_make(words: list[str]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for word in words:
        if word not in targets:
            raise UnknownCommand(f"the Makefile has no target {word!r}")


def check_pip(words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for named in re.findall(r"\[([\w,]+)\]", " ".join(words)):
        if missing := set(named.split(",")) - set(extras):
            raise UnknownCommand(f"there is no extra {missing.pop()!r}")


def accept(words: list[str]) -> None:
    """Not ours: nothing to compare it with."""


CHECKS = {
    "stablenet": check_stablenet,
    "python": check_python,
    "torchrun": check_torchrun,
    "make": check_make,
    "pip": check_pip,
    **dict.fromkeys((".", "git", "ray", "docker", "cd", "ls", "cat", "export"), accept),
}
