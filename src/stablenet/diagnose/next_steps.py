"""What to do after a diagnosis: the samples that break the correlation, and commands that can be copied.

A sample breaks it where its features speak against its own label (`Diagnosis.scores`), as those of a cat on the beach
do where cats are indoors. On pets pasted over places whose contexts were hidden from the diagnosis, 95 % of them
typical of their class, this order puts an atypical image before a typical one in 94 of 100 pairs with hand-made
features and in 99 with a ResNet-50; the order of the weights does in 89 and 98.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from stablenet.diagnose.verdict import Diagnosis, say_share
from stablenet.evaluation.predict import save_table

RAREST = 0.1  # share of a class that is shown as its exceptions where no context is named
MOST_NAMED = 3  # other contexts of a class that are listed by name


@dataclass(frozen=True)
class Side:
    """Some samples of a class: in words, their shares of the class by number and by weight, the most telling first."""

    name: str
    share: float
    weight: float
    positions: Tensor
    detail: str = ""

    @property
    def words(self) -> str:
        """ "5 % of the class, 25 % of its weight" """
        return f"{say_share(self.share)} of the class, {say_share(self.weight)} of its weight"


@dataclass(frozen=True)
class ClassRow:
    """A class: its usual samples and its exceptions.   share: of the class that the features predict."""

    name: str
    usual: Side
    exceptions: Side
    share: float
    p_value: float


def order_classes(diagnosis: Diagnosis) -> list[int]:
    """Positions of the classes, best predicted first."""
    found = diagnosis.border or diagnosis.whole
    return sorted(range(len(diagnosis.classes)), key=lambda k: -found.classes[k])


def describe_class(diagnosis: Diagnosis, k: int) -> ClassRow:
    """By the context that was named, or else by how much the features speak for the class."""
    own = (diagnosis.y == k).nonzero().squeeze(1)
    own = own[diagnosis.scores[own].argsort(descending=True, stable=True)]
    usual, exceptions = _by_context(diagnosis, k, own) if diagnosis.context else _by_score(diagnosis, k, own)
    return ClassRow(diagnosis.classes[k], usual, exceptions, diagnosis.whole.classes[k], diagnosis.whole.class_p[k])


def _by_score(diagnosis: Diagnosis, k: int, own: Tensor) -> tuple[Side, Side]:
    rare = max(1, round(RAREST * len(own)))
    name, samples = diagnosis.classes[k], "images" if diagnosis.show else "rows"
    usual, exceptions = own[:-rare], own[-rare:].flip(0)
    return (
        _weigh(diagnosis, own, usual, f"most {samples} of {name}", "most typical first"),
        _weigh(diagnosis, own, exceptions, f"{samples} of {name} that look least like the others"),
    )


def _by_context(diagnosis: Diagnosis, k: int, own: Tensor) -> tuple[Side, Side]:
    context = diagnosis.context
    assert context is not None
    name, shares = diagnosis.classes[k], context.before[:, k]
    main = int(shares.argmax())
    others = [c for c in np.argsort(-shares, kind="stable") if c != main and shares[c] > 0]
    usual, exceptions = own[context.where[own] == main], own[context.where[own] != main].flip(0)
    place = context.names[others[0]] if len(others) == 1 else "other contexts"
    listed = [f"{context.names[c]} {say_share(shares[c])}" for c in others[:MOST_NAMED]]
    more = len(others) - MOST_NAMED
    detail = "" if len(others) < 2 else ", ".join([*listed, *([f"{more} more"] if more > 0 else [])])
    return (
        _weigh(diagnosis, own, usual, f"{name} in {context.names[main]}"),
        _weigh(diagnosis, own, exceptions, f"{name} in {place}" if others else f"{name} elsewhere", detail),
    )


def _weigh(diagnosis: Diagnosis, own: Tensor, chosen: Tensor, name: str, detail: str = "") -> Side:
    weights = diagnosis.weights.double()
    weight = float(weights[chosen].sum() / weights[own].sum())
    return Side(name, len(chosen) / len(own), weight, chosen, detail)


def rank_samples(diagnosis: Diagnosis) -> pd.DataFrame:
    """All samples, those first that break the correlation most.

    rank, id, path, label, domain, outside: whether the domain is not the main one of its label; both empty where no
    context was named.   context_score: how much the features speak for the own label, by a linear fit, about −1 to 1.
    weight: mean one.
    """
    context = diagnosis.context
    order = diagnosis.scores.argsort(stable=True).tolist()
    weights = diagnosis.weights / diagnosis.weights.mean()
    return pd.DataFrame(
        {
            "rank": np.arange(1, len(order) + 1),
            "id": [diagnosis.ids[i] for i in order],
            "path": [diagnosis.paths[i] if diagnosis.paths else "" for i in order],
            "label": [diagnosis.classes[int(diagnosis.y[i])] for i in order],
            "domain": [context.names[int(context.where[i])] if context else "" for i in order],
            "outside": ["" if context is None else "yes" if context.off[i] else "no" for i in order],
            "context_score": np.round(diagnosis.scores[torch.tensor(order)].numpy(), 4),
            "weight": np.round(weights[torch.tensor(order)].numpy(), 4),
        }
    )


def write_exceptions(diagnosis: Diagnosis, path: Path) -> None:
    """The ranked list as CSV or Parquet, by the path's ending."""
    save_table(rank_samples(diagnosis), path)


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
