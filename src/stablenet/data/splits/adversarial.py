"""Adversarial: each class has mostly one background in training, which at test belongs to another class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from stablenet.data.image_list import ComposedList
from stablenet.data.manifest import JSON, Manifest
from stablenet.data.splits.counting import (
    SplitRows,
    allot,
    build_manifest,
    draw_places,
    round_share,
    shuffle,
    shuffle_rows,
)
from stablenet.errors import UserError
from stablenet.values import Count, OpenShare, ShareBelowOne, check_fields, require

RANDOM = "random"


@dataclass(frozen=True, kw_only=True)
class AdversarialSettings:
    """ratio: share of a class's training images on its dominant background, 0.5 … 0.95 in the paper, or "random":
        every image of both parts on any background.
    test_ratio: the same for the test part; None takes ratio.
    backgrounds: how many backgrounds are used, drawn with the seed; None takes all (200 for MNIST-M).
    train_size: training and validation images together; None takes all training digits. The paper gives no number.
    test_size: test images; None takes all test digits (10,000 for MNIST).
    validation: share of train_size held out for selection.
    """

    ratio: OpenShare | Literal["random"] = 0.9
    test_ratio: OpenShare | None = None
    backgrounds: Count | None = None
    train_size: Count | None = None
    test_size: Count | None = None
    validation: ShareBelowOne = 0.1

    def __post_init__(self) -> None:
        check_fields(self)
        random = self.ratio == RANDOM
        require(
            not random or self.test_ratio is None, "test_ratio", "left out with a random background", self.test_ratio
        )


@dataclass(frozen=True)
class Backgrounds:
    """Per class, the domains of a part, the dominant one first."""

    train: list[list[str]]
    test: list[list[str]]


def split_adversarial(table: ComposedList, settings: AdversarialSettings, seed: int) -> Manifest:
    """A row is a digit, its background domain and the place u, v of the crop. No digit is used twice."""
    train = _choose_digits(table, "train", settings.train_size, seed)
    test = _choose_digits(table, "test", settings.test_size, seed)
    used = _choose_backgrounds(table, settings.backgrounds, seed)
    parameters: dict[str, JSON] = {
        "ratio": settings.ratio,
        "test_ratio": settings.ratio if settings.test_ratio is None else settings.test_ratio,
        "backgrounds": len(used),
        "train_size": len(train),
        "test_size": len(test),
        "validation": float(settings.validation),
    }
    if settings.ratio == RANDOM:
        train, test = (_place_randomly(table, rows, used, seed) for rows in (train, test))
    else:
        subsets = assign_backgrounds(table.classes, used, seed)
        train = _place(table, train, subsets.train, parameters["ratio"], seed)
        test = _place(table, test, subsets.test, parameters["test_ratio"], seed)
        parameters["dominant"] = {c: s[0] for c, s in zip(table.classes, subsets.train, strict=True)}
        parameters["test_dominant"] = {c: s[0] for c, s in zip(table.classes, subsets.test, strict=True)}
    return build_manifest(table, "adversarial", parameters, seed, SplitRows(train, test))


def assign_backgrounds(classes: tuple[str, ...], used: list[str], seed: int) -> Backgrounds:
    """One subset of the backgrounds per class; at test each class gets another class's subset (one cycle)."""
    if len(used) < 2 * len(classes):
        raise UserError(
            f"{len(used)} backgrounds are too few: every one of the {len(classes)} classes needs a dominant "
            f"and another one, {2 * len(classes)} in all"
        )
    train = [list(used[number :: len(classes)]) for number in range(len(classes))]
    cycle = [classes.index(name) for name in shuffle(classes, seed, "swap")]
    test = list(train)
    for place, label in enumerate(cycle):
        test[label] = train[cycle[place - 1]]
    return Backgrounds(train, test)


def _choose_digits(table: ComposedList, subset: str, size: int | None, seed: int) -> pd.DataFrame:
    """Digits of a subset in the proportions of the classes."""
    rows = shuffle_rows(table.rows[table.rows["subset"] == subset], seed, "digits")
    sizes = [int((rows["label"] == label).sum()) for label in range(len(table.classes))]
    if size is not None and not 1 <= size <= len(rows):
        raise UserError(f"{size} {subset} images were asked for: {table.name} has {len(rows)} {subset} digits")
    counts = allot(len(rows) if size is None else size, sizes)
    wanted = rows["label"].map(dict(enumerate(counts)))
    return rows[rows.groupby("label").cumcount() < wanted]


def _choose_backgrounds(table: ComposedList, number: int | None, seed: int) -> list[str]:
    if number is not None and not 1 <= number <= len(table.domains):
        raise UserError(f"{number} backgrounds were asked for: {table.name} has {len(table.domains)}")
    return shuffle(table.domains, seed, "backgrounds")[:number]


def _place(table: ComposedList, digits: pd.DataFrame, subsets: list[list[str]], ratio: JSON, seed: int) -> pd.DataFrame:
    """Each class's digits over its subset: the share `ratio` on the first background, the rest spread evenly."""
    assert isinstance(ratio, float | int)
    domain = np.empty(len(digits), np.int64)
    for label, subset in enumerate(subsets):
        members = np.flatnonzero(digits["label"] == label)
        numbers = [table.domains.index(name) for name in subset]
        dominant = round_share(len(members), ratio)
        minor = np.resize(numbers[1:], len(members) - dominant)
        domain[members] = np.concatenate([np.full(dominant, numbers[0]), minor])
    return _crop(digits.assign(domain=domain), seed)


def _place_randomly(table: ComposedList, digits: pd.DataFrame, used: list[str], seed: int) -> pd.DataFrame:
    """Every digit over any of the backgrounds, uniformly."""
    numbers = np.array([table.domains.index(name) for name in used])
    high, low = draw_places(digits["id"], seed, "background").T
    return _crop(digits.assign(domain=numbers[((high << 16) + low) * len(numbers) >> 32]), seed)


def _crop(digits: pd.DataFrame, seed: int) -> pd.DataFrame:
    places = draw_places(digits["id"], seed, "crop")
    return digits.assign(u=places[:, 0], v=places[:, 1])
