"""What to run after a diagnosis, as commands that can be copied."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Literal

Kind = Literal["own images", "source", "run", "table"]


@dataclass(frozen=True)
class Step:
    """A command, and what it is for."""

    why: str
    command: str


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What was diagnosed: its kind, and the data as they were named.

    options: of `stablenet diagnose`, which say how the data are read.   table: the same for `stablenet table fit`.
    csv: where the ranked list was written, "" for nowhere.
    """

    kind: Kind
    data: str
    options: tuple[str, ...] = ()
    table: tuple[str, ...] = ()
    csv: str = ""


def suggest_steps(asked: Asked, level: str) -> list[Step]:
    """The command to run next comes first; the list of exceptions is offered where it was not written yet."""
    words = ["diagnose", asked.data, *asked.options, "--csv", "exceptions.csv"]
    listing = _make("List the samples that break the correlation, to relabel them or to collect more of them:", words)
    steps = [_suggest_training(asked)]
    if not asked.csv:
        steps.insert(0 if level == "unlikely" else 1, listing)
    return steps


def _suggest_training(asked: Asked) -> Step:
    match asked.kind:
        case "table":
            return _make("Fit it with equal and with learned weights:", ["table", "fit", asked.data, *asked.table])
        case "run":
            return _make("See the weights and offsets that entered the run's loss:", ["weights", asked.data])
        case "source":
            words = ["list", "recipes", "--match", f"{asked.data}*"]
            return _make("Choose a recipe of these data, and train ERM and StableNet with it:", words)
        case "own images":
            words = ["try", asked.data, *asked.options]
            return _make("Train plainly and with StableNet, and see what is gained:", words)


def _make(why: str, words: list[str]) -> Step:
    return Step(why, shlex.join(["stablenet", *words]))
