"""The plain splits: given with the images, a random share held out, or one domain left out (classic)."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from stablenet.data.columns import PART
from stablenet.data.image_list import ImageList
from stablenet.data.manifest import JSON, Manifest
from stablenet.data.splits import counting
from stablenet.data.splits.counting import (
    DEFAULT_VALIDATION,
    SplitRows,
    build_manifest,
    find_domain,
    hold_out,
    need_domains,
)
from stablenet.errors import UserError
from stablenet.values import OpenShare, ShareBelowOne, check_fields

GIVEN = "given"


@dataclass(frozen=True, kw_only=True)
class GivenSettings:
    """validation: share of the training images held out where no validation part is given; None takes 10 %."""

    validation: ShareBelowOne | None = None

    def __post_init__(self) -> None:
        check_fields(self)


def split_given(table: ImageList, settings: GivenSettings, seed: int) -> Manifest:
    """The parts as they are given; the seed matters only where a validation part has to be drawn."""
    given = table.given_parts
    if not given:
        raise UserError(
            f"{table.known_as} comes with no split: add a column part (train, validation, test) or folders "
            "train/ and test/, or use the split held-out"
        )
    parts = {part: table.rows[table.rows[PART] == part] for part in ("train", "validation", "test")}
    own = "validation" in given
    if own and settings.validation is not None:
        raise UserError(f"the given split has {given['validation']} validation images of its own: leave validation out")
    share = DEFAULT_VALIDATION if settings.validation is None else settings.validation
    parameters: dict[str, JSON] = {"validation": GIVEN if own else float(share)}
    rows = SplitRows(parts["train"], parts["test"], validation=parts["validation"] if own else None)
    lacking = "the given split has no test part: validation and training images are all there is to evaluate on"
    notes = () if "test" in given else (lacking,)
    return build_manifest(table, GIVEN, parameters, seed, rows, notes)


HELD_OUT = "held-out"


@dataclass(frozen=True, kw_only=True)
class HeldOutSettings:
    """test: share of the images that is the test part.   validation: share of the others held out for selection; None
    takes 10 % (VLCS 30 %). Both are taken of every class in every context alike.
    """

    test: OpenShare = 0.2
    validation: ShareBelowOne | None = None

    def __post_init__(self) -> None:
        check_fields(self)


def split_held_out(table: ImageList, settings: HeldOutSettings, seed: int) -> Manifest:
    source, test = hold_out(table.rows, settings.test, seed, "test")
    share = counting.validation_share(table.name) if settings.validation is None else settings.validation
    parameters: dict[str, JSON] = {"test": float(settings.test), "validation": float(share)}
    manifest = build_manifest(table, HELD_OUT, parameters, seed, SplitRows(source, test))
    trained = manifest.counts("train").sum()
    lost = [name for name in table.classes if not trained[name]]
    if lost:
        raise UserError(
            f"{table.known_as} has too few images of {', '.join(lost)} to train on some and hold out others: "
            "add images, leave out these classes, or lower the shares test and validation"
        )
    return manifest


@dataclass(frozen=True, kw_only=True)
class ClassicSettings:
    """target: the domain left out.
    validation: share of the source domains held out; None takes the source's published division where it has
    one (PACS's lists, VLCS's folders), else 10 % (VLCS 30 %).
    """

    target: str
    validation: ShareBelowOne | None = None

    def __post_init__(self) -> None:
        check_fields(self)


def split_classic(table: ImageList, settings: ClassicSettings, seed: int) -> Manifest:
    need_domains(table, "classic")
    target = find_domain(table, settings.target)
    is_target = table.rows["domain"] == target
    source, test = table.rows[~is_target], table.rows[is_target]
    published = settings.validation is None and "subset" in source and (source["subset"] != "").all()
    share = counting.validation_share(table.name) if settings.validation is None else settings.validation
    parts = SplitRows(source, test)
    if published:
        held = _published_validation(source["subset"])
        parts = SplitRows(source[~held], test, validation=source[held])
    parameters: dict[str, JSON] = {"target": settings.target, "validation": float(share), "published": bool(published)}
    return build_manifest(table, "classic", parameters, seed, parts)


def _published_validation(subset: pd.Series[str]) -> pd.Series[bool]:
    """VLCS holds its 30 % in `test`; PACS, whose lists have no such subset, its 10 % in `crossval`."""
    return subset == ("test" if (subset == "test").any() else "crossval")
