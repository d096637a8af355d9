"""Held out: a share of every class in every context is the test part. For images without contexts, or no target."""

from __future__ import annotations

from dataclasses import dataclass

from stablenet.data.image_list import ImageList
from stablenet.data.manifest import JSON, Manifest
from stablenet.data.splits import counting
from stablenet.data.splits.counting import SplitRows, build_manifest, hold_out
from stablenet.errors import UserError
from stablenet.values import OpenShare, ShareBelowOne, check_fields

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
