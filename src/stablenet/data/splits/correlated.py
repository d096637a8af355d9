"""Correlated: in training every class is mostly in its own context; the test part is balanced, or swapped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pandas as pd

from stablenet.data.compose import PLACES
from stablenet.data.image_list import CutoutList, ImageList
from stablenet.data.manifest import JSON, Manifest
from stablenet.data.splits.adversarial import RANDOM
from stablenet.data.splits.counting import (
    SplitRows,
    allot,
    build_manifest,
    draw_places,
    floor_share,
    round_share,
    shuffle_rows,
    take,
)
from stablenet.errors import UserError
from stablenet.registry import unknown_name
from stablenet.values import Count, OpenShare, ShareAboveZero, ShareBelowOne, check_fields, require


@dataclass(frozen=True, kw_only=True)
class CorrelatedSettings:
    """ratio: share of a class's training images in its own context, or "random": every one in any context. The others
        are spread evenly over the other contexts.
    classes: what is classified, one of the source's levels (pets: species, breed); "" for the first.
    only: names of classes or kinds to use; none for all.
    half: of the foregrounds, by a hash of their names: even or odd, whatever the seed, to keep beds apart;
        "" for all.
    contexts: names of contexts, several joined as one by "+" (buildings+street); none for all.
    own: class to its own context; the others take the contexts in turn: the first class the first, and so on.
    train_size: training and validation images together, in the proportions of the classes.
    per_class: the same for each class; instead of train_size. Without both all images that are not for the test.
    test: balanced, equally many images of every class in every context; crossed, the same with every foreground once
        in every context; swapped, the share `ratio` of a class in the own context of the next class that has another.
    test_size: at most so many test images; None for as many as equal groups allow.
    test_share: of each class's foregrounds, and of each context's backgrounds, kept for the test, where the source has
        no published test images.
    validation: share of the training images held out for selection.
    side: of the composed images, in pixels.   smallest, largest: height of a foreground, as a share of the side.
    """

    ratio: OpenShare | Literal["random"] = 0.95
    classes: str = ""
    only: tuple[str, ...] = ()
    half: Literal["", "even", "odd"] = ""
    contexts: tuple[str, ...] = ()
    own: dict[str, str] = field(default_factory=dict)
    train_size: Count | None = None
    per_class: Count | None = None
    test: Literal["balanced", "crossed", "swapped"] = "balanced"
    test_size: Count | None = None
    test_share: OpenShare = 0.25
    validation: ShareBelowOne = 0.1
    side: Count = 160
    smallest: ShareAboveZero = 0.55
    largest: ShareAboveZero = 0.85

    def __post_init__(self) -> None:
        check_fields(self)
        require(
            self.per_class is None or self.train_size is None, "per_class", "left out with train_size", self.per_class
        )
        require(self.smallest <= self.largest, "largest", f"at least smallest, {self.smallest}", self.largest)
        require(
            self.test != "swapped" or self.ratio != RANDOM,
            "test",
            "balanced or crossed with random contexts",
            self.test,
        )


def split_correlated(table: CutoutList, settings: CorrelatedSettings, seed: int) -> Manifest:
    """A row is a foreground, its background and its place. No foreground or background is in both training and test."""
    chosen = table.choose(settings.classes, settings.only, settings.contexts)
    if len(chosen.classes) < 2 or len(chosen.domains) < 2:
        raise UserError(
            f"{len(chosen.classes)} classes in {len(chosen.domains)} contexts cannot be correlated: choose at least "
            "two of each with only, contexts or the level classes"
        )
    own = assign_own(chosen.classes, chosen.domains, settings.own)
    foregrounds = _keep_half(chosen.foregrounds, settings.half)
    pool, held = _divide(foregrounds, settings.test_share, seed, "foregrounds")
    below = _divide(chosen.backgrounds, settings.test_share, seed, "backgrounds")
    drawn = _draw_training(pool, chosen, settings, seed)
    if settings.ratio == RANDOM:
        train = _give_random_contexts(drawn, chosen, seed)
    else:
        train = _give_contexts(drawn, own, settings.ratio, chosen)
    test = _draw_test(held, own, settings, chosen, seed)
    parts = SplitRows(_place(train, below[0], settings, seed, "train"), _place(test, below[1], settings, seed, "test"))
    parameters = _describe(settings, chosen, own, (len(train), len(test)))
    return build_manifest(chosen, "correlated", parameters, seed, parts, _name_gaps(train, chosen))


def assign_own(classes: Sequence[str], contexts: Sequence[str], given: Mapping[str, str]) -> list[int]:
    """The own context of every class, by number: as given, or in turn."""
    for name, context in given.items():
        if name not in classes:
            raise UserError(unknown_name("class in own", name, classes))
        if context not in contexts:
            raise UserError(unknown_name(f"context in own.{name}", context, contexts))
    return [contexts.index(given.get(name, contexts[k % len(contexts)])) for k, name in enumerate(classes)]


def next_own(own: Sequence[int]) -> list[int]:
    """For every class the own context of the next class that has another one, in a circle."""
    if len(set(own)) == 1:
        raise UserError("all classes have the same own context: contexts cannot be swapped; change own")
    following = []
    for k, context in enumerate(own):
        ahead = (own[(k + step) % len(own)] for step in range(1, len(own)))
        following.append(next(other for other in ahead if other != context))
    return following


def _keep_half(images: ImageList, half: str) -> ImageList:
    """The images whose name has an even or odd hash; all of them for ""."""
    if not half:
        return images
    odd = draw_places(images.rows["id"], 0, "half")[:, 0] % 2 == 1
    return replace(images, rows=images.rows[odd == (half == "odd")])


def _divide(images: ImageList, share: float, seed: int, purpose: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(training, test) rows: as published, or the share of every class (kind, context), at least one of them."""
    rows = images.rows
    if "subset" in rows:
        test = rows["subset"] == "test"
        return rows[~test], rows[test]
    sizes = Counter(zip(rows["domain"], rows["label"], strict=True))
    counts = {key: max(1, floor_share(size, share)) for key, size in sizes.items()}
    test = rows["id"].isin(take(rows, counts, seed, purpose, "test")["id"])
    if test.all():
        raise UserError(f"the {purpose} of {images.name} are too few to keep some for the test: add images")
    return rows[~test], rows[test]


def _draw_training(pool: pd.DataFrame, table: CutoutList, settings: CorrelatedSettings, seed: int) -> pd.DataFrame:
    """The training foregrounds, in random order."""
    rows = shuffle_rows(pool, seed, "training")
    sizes = _count(rows, table)
    counts = sizes
    if settings.per_class is not None:
        short = [name for name, size in zip(table.classes, sizes, strict=True) if size < settings.per_class]
        if short:
            raise UserError(
                f"{settings.per_class} training images of each class were asked for: {short[0]} has "
                f"{sizes[table.classes.index(short[0])]}; lower per_class or test_share"
            )
        counts = [settings.per_class] * len(sizes)
    elif settings.train_size is not None:
        counts = allot(settings.train_size, sizes)
    return _first(rows, counts)


def _draw_test(
    held: pd.DataFrame, own: Sequence[int], settings: CorrelatedSettings, table: CutoutList, seed: int
) -> pd.DataFrame:
    rows = shuffle_rows(held, seed, "test")
    classes, contexts = len(table.classes), len(table.domains)
    most = min(_count(rows, table))  # of a class
    limit = most * classes * contexts if settings.test_size is None else settings.test_size
    if settings.test == "swapped":
        each = _at_least_one(min(most, limit // classes), settings, most)
        return _give_contexts(_first(rows, [each] * classes), next_own(own), settings.ratio, table)
    groups = limit // (classes * contexts)
    if settings.test == "crossed":
        each = _at_least_one(min(most, groups), settings, most)
        return _cross(_first(rows, [each] * classes), table)
    each = _at_least_one(min(most // contexts, groups), settings, most)
    rows = _first(rows, [each * contexts] * classes)
    return rows.assign(domain=rows.groupby("label").cumcount() % contexts)


def _at_least_one(count: int, settings: CorrelatedSettings, most: int) -> int:
    if count < 1:
        raise UserError(
            f"no test image is left for every class and context: the smallest class has {most} test foregrounds and "
            f"test_size is {settings.test_size}; use fewer contexts, a larger test_share, or test=crossed"
        )
    return count


def _cross(rows: pd.DataFrame, table: CutoutList) -> pd.DataFrame:
    """Every foreground once in every context; ids name both."""
    frames = [
        rows.assign(domain=k, foreground=rows["id"], id=rows["id"] + f"@{c}") for k, c in enumerate(table.domains)
    ]
    return pd.concat(frames, ignore_index=True)


def _give_contexts(rows: pd.DataFrame, main: Sequence[int], ratio: float | str, table: CutoutList) -> pd.DataFrame:
    """Contexts for rows in random order: the share `ratio` of a class in its main one, the rest spread evenly."""
    assert not isinstance(ratio, str)
    contexts = len(table.domains)
    domain = np.empty(len(rows), np.int64)
    for label, context in enumerate(main):
        members = np.flatnonzero(rows["label"] == label)
        others = np.roll([other for other in range(contexts) if other != context], -label)  # not always the same first
        dominant = round_share(len(members), ratio)
        domain[members] = np.concatenate([np.full(dominant, context), np.resize(others, len(members) - dominant)])
    return rows.assign(domain=domain)


def _give_random_contexts(rows: pd.DataFrame, table: CutoutList, seed: int) -> pd.DataFrame:
    """Every foreground in any of the contexts, uniformly."""
    high, low = draw_places(rows["id"], seed, "context").T
    return rows.assign(domain=((high << 16) + low) * len(table.domains) >> 32)


def _place(
    rows: pd.DataFrame, backgrounds: pd.DataFrame, settings: CorrelatedSettings, seed: int, part: str
) -> pd.DataFrame:
    """A background of each row's context, all of them equally often, and the place of the foreground on it."""
    below = shuffle_rows(backgrounds, seed, "backgrounds", part)
    turn = rows.groupby("domain").cumcount().to_numpy()
    chosen = np.empty(len(rows), object)
    for context in rows["domain"].unique():
        ids = below.loc[below["domain"] == context, "id"].to_numpy(object)
        members = np.flatnonzero(rows["domain"] == context)
        chosen[members] = ids[turn[members] % len(ids)]
    foreground = rows.get("foreground", rows["id"])
    places, draws = draw_places(foreground, seed, "place"), draw_places(foreground, seed, "scale")[:, 0]
    low, high = (round(1000 * share) for share in (settings.smallest, settings.largest))
    scale = low + draws * (high - low + 1) // PLACES
    return rows.assign(foreground=foreground, background=chosen, u=places[:, 0], v=places[:, 1], scale=scale)


def _first(rows: pd.DataFrame, counts: Sequence[int]) -> pd.DataFrame:
    """The first rows of every class."""
    kept = rows.groupby("label").cumcount() < rows["label"].map(dict(enumerate(counts)))
    return rows[kept].reset_index(drop=True)


def _count(rows: pd.DataFrame, table: CutoutList) -> list[int]:
    """Foregrounds per class, at least one each."""
    sizes = [int((rows["label"] == label).sum()) for label in range(len(table.classes))]
    if not min(sizes):
        raise UserError(f"{table.name} has no foreground of {table.classes[sizes.index(0)]} for one of the parts")
    return sizes


def _describe(
    settings: CorrelatedSettings, chosen: CutoutList, own: Sequence[int], sizes: tuple[int, int]
) -> dict[str, JSON]:
    names = [chosen.domains[context] for context in own]
    parameters: dict[str, JSON] = {
        "ratio": settings.ratio,
        "classes": settings.classes or chosen.levels[0],
        "only": list(settings.only),
        "contexts": list(chosen.domains),
        "train_size": sizes[0],
        "per_class": settings.per_class,
        "test": settings.test,
        "test_size": sizes[1],
        "test_share": settings.test_share,
        "validation": float(settings.validation),
        "side": settings.side,
        "smallest": settings.smallest,
        "largest": settings.largest,
    }
    if settings.half:
        parameters["half"] = settings.half
    if settings.ratio != RANDOM:
        parameters["dominant"] = dict(zip(chosen.classes, names, strict=True))
    if settings.test == "swapped":
        swapped = [chosen.domains[context] for context in next_own(own)]
        parameters["test_dominant"] = dict(zip(chosen.classes, swapped, strict=True))
    return parameters


def _name_gaps(train: pd.DataFrame, table: CutoutList) -> tuple[str, ...]:
    """A note on the groups of class and context without a training image: steep ratios, or few images."""
    there = set(zip(train["label"], train["domain"], strict=True))
    gaps = [
        f"{name} in {context}"
        for label, name in enumerate(table.classes)
        for domain, context in enumerate(table.domains)
        if (label, domain) not in there
    ]
    return (f"no training image of {len(gaps)} groups, such as {gaps[0]}",) if gaps else ()
