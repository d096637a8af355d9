"""What the columns of a user's image list are called, and the names of the parts of a given split."""

from __future__ import annotations

from dataclasses import dataclass

from stablenet.values import check_fields

PATH, LABEL, CONTEXT, PART = "path", "label", "context", "part"
USUAL = {
    PATH: ("path", "file_name", "img_filename"),
    LABEL: ("label", "class", "y"),
    CONTEXT: ("context", "domain"),
    PART: ("part", "split", "subset"),
}
NO_PART = "none"
_PARTS = {
    "train": ("train", "training", "0"),
    "validation": ("validation", "val", "valid", "dev", "1"),
    "test": ("test", "testing", "2"),
}
SPELLINGS = ", ".join(spelling for spellings in _PARTS.values() for spelling in spellings)


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of an image list's columns; "" finds those with a usual name. Only path and label must be there.

    context: the domain of an image.   part: train, validation or test of a given split; "none" reads no given split,
    neither from a column nor from folders.
    """

    path: str = ""
    label: str = ""
    context: str = ""
    part: str = ""

    def __post_init__(self) -> None:
        check_fields(self)


def find_part(name: str) -> str | None:
    """The part that is meant: "Val" is validation, "0" is train; None for any other name."""
    plain = name.strip().lower().removesuffix(".0")
    return next((part for part, spellings in _PARTS.items() if plain in spellings), None)
