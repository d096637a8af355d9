"""Where the images of a source lie and how they are read: options that the verbs of `stablenet data` share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from stablenet.data.sources import AnyImageList

Root = Annotated[
    Path | None,
    typer.Option(
        "--root",
        help="Folder or archive of the source, or the folder that contains it; published data sets are also looked up "
        "in STABLENET_DATA.",
    ),
]
ColumnNames = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        help="Your own image list: the name of a column, such as label=species; for path, label, context and part. "
        "part=none reads no given split.",
    ),
]
ListFile = Annotated[
    Path | None,
    typer.Option("--image-list", help="Your own image list, if --root is the folder where its paths begin."),
]


@dataclass(frozen=True)
class DataPlace:
    root: Path | None
    columns: list[str] | None = None
    image_list: Path | None = None

    def read(self, source: str) -> AnyImageList:
        """The image list of a source."""
        from stablenet.data.columns import Columns
        from stablenet.data.sources import read_source
        from stablenet.values import read_fields

        columns = read_fields(Columns, parse_sets(self.columns or []), "column")
        return read_source(source, self.root or default_root(source), columns, self.image_list)

    def read_if_named(self, source: str) -> AnyImageList | None:
        """The same, None where nothing says where the source lies."""
        known = self.root or self.image_list or default_root(source)
        return None if known is None else self.read(source)


def default_root(source: str) -> Path | None:
    """STABLENET_DATA holds the published data sets; users' own images are never looked up there."""
    from stablenet.data.sources import SOURCES

    folder = os.environ.get("STABLENET_DATA")
    return Path(folder) if folder and source in SOURCES and SOURCES[source].counts else None


def parse_sets(texts: list[str]) -> dict[str, Any]:
    """Nested values from `key=value` options."""
    from stablenet.engine.config import merge, parse_setting

    values: dict[str, Any] = {}
    for text in texts:
        values = merge(values, parse_setting(text))
    return values
