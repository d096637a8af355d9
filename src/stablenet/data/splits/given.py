"""Given: the split that the user's images come with, in a column of their list or as folders train/ and test/."""

from __future__ import annotations

from dataclasses import dataclass

from stablenet.data.columns import PART
from stablenet.data.image_list import ImageList
from stablenet.data.manifest import JSON, Manifest
from stablenet.data.splits.counting import DEFAULT_VALIDATION, SplitRows, build_manifest
from stablenet.errors import UserError
from stablenet.values import ShareBelowOne, check_fields

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
