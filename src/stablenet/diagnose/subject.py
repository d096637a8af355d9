"""What is diagnosed: images with labels and perhaps a context, from a folder, a listing or a named source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from PIL import Image

from stablenet.data.decode import decode
from stablenet.data.manifest import Manifest
from stablenet.data.pipeline import render_part
from stablenet.data.settings import split_table
from stablenet.data.sources import SOURCES, folder, read_source
from stablenet.data.sources.tree import find_tree
from stablenet.data.table import ComposedTable, ImageTable, make_image_table
from stablenet.errors import UserError
from stablenet.registry import unknown_name

Picture = NDArray[np.uint8]  # (s, s, 3)


@dataclass(frozen=True)
class Subject:
    """n labelled images; none is read before `load` asks for it.

    y: (n,) int64, into classes.   context: (n,) int64, into contexts, or None.
    load: a position in 0 … n−1 and a side s to an image (s, s, 3).   side: of the images, where it is one for all.
    """

    name: str
    classes: tuple[str, ...]
    contexts: tuple[str, ...]
    y: NDArray[np.int64]
    context: NDArray[np.int64] | None
    load: Callable[[int, int], Picture]
    side: int | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.y)

    def take(self, positions: NDArray[np.int64], *notes: str) -> Subject:
        """The images at these positions alone."""
        context = None if self.context is None else self.context[positions]
        load = self.load
        return replace(
            self,
            y=self.y[positions],
            context=context,
            load=lambda position, side: load(int(positions[position]), side),
            notes=(*self.notes, *notes),
        )


def open_place(place: Path, label: str, context: str | None) -> Subject:
    """A folder or archive (class/image or domain/class/image), or a CSV file with a column `path`."""
    if place.is_file() and place.suffix != ".zip":
        return from_table(_read_listing(place, label, context), named=context is not None)
    if context is not None:
        raise UserError("a folder names its context itself, as domain/class/image: leave --context out")
    if _depth(place) == 1:
        return from_table(_read_classes(place), named=False)
    return from_table(folder.read(place), named=True)


def open_source(name: str, root: Path | None, manifest: Path | None, setting: str, given: Mapping[str, Any]) -> Subject:
    """The training part of a split of a named source, or without a setting all its images."""
    table = read_source(name, root)
    if manifest is not None:
        split: Manifest | None = Manifest.load(manifest)
    elif setting:
        seed = int(given.get("seed", 0))
        split = split_table(table, setting, seed, **{key: value for key, value in given.items() if key != "seed"})
    else:
        split = None
    if isinstance(table, ComposedTable):
        if split is None:
            raise UserError(f"{name} is blended by a setting: add --setting adversarial --set ratio=0.9, or --manifest")
        return _from_composed(table, split)
    return from_table(table if split is None else _take_training(table, split), named=True)


def is_source(name: str) -> bool:
    """Whether a name is that of a published source; the user's own images are given by their place."""
    return name in list(SOURCES) and (bool(SOURCES[name].counts) or not SOURCES[name].needs_root)


def from_table(table: ImageTable, named: bool) -> Subject:
    """named: whether the table's domains are contexts; one alone tells nothing."""
    paths = table.rows["path"].tolist()
    known = named and table.rows["domain"].nunique() > 1
    return Subject(
        name=table.name if is_source(table.name) else table.root.name,
        classes=table.classes,
        contexts=table.domains if known else (),
        y=np.array(table.rows["label"], np.int64),
        context=np.array(table.rows["domain"], np.int64) if known else None,
        load=lambda position, side: decode(table.open_bytes(paths[position]), (side, side)),
        notes=table.notes,
    )


def _from_composed(table: ComposedTable, manifest: Manifest) -> Subject:
    samples = render_part(table, manifest, "train")

    def load(position: int, side: int) -> Picture:
        image = samples.pixels.read(samples.row[position : position + 1])[0].numpy()
        if image.shape[0] == side:
            return image
        return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR))

    return Subject(
        name=table.name,
        classes=manifest.classes,
        contexts=manifest.domains,
        y=samples.y.numpy(),
        context=samples.domain.numpy(),
        load=load,
        side=samples.pixels.read(torch.zeros(1, dtype=torch.int64)).shape[1],
        notes=manifest.notes,
    )


def _take_training(table: ImageTable, manifest: Manifest) -> ImageTable:
    rows = manifest.part("train")[["id", "label", "domain"]]
    joined = rows.merge(table.rows[["id", "path"]], on="id", how="left")
    if joined["path"].isna().any():
        missing = joined.loc[joined["path"].isna(), "id"].iloc[0]
        raise UserError(f"{table.name} has no image {missing}: the manifest was made from another source")
    return replace(table, classes=manifest.classes, domains=manifest.domains, rows=joined)


def _depth(place: Path) -> int:
    """Folders above the images, one wrapping folder of an archive left aside: 1 for class/image."""
    if not place.exists():
        raise UserError(f"{place} does not exist: give a folder of images, a CSV file or the name of a source")
    images = find_tree(place, "folder", lambda _, names: bool(names), "class/image").images
    if not images:
        raise UserError(f"{place} holds no images: expected class/image or domain/class/image")
    return images[0].count("/")


def _read_classes(place: Path) -> ImageTable:
    tree = find_tree(place, "folder", lambda _, names: bool(names), "class/image")
    stray = [image for image in tree.images if image.count("/") != 1]
    if stray:
        raise UserError(f"{len(stray)} images in {place} are not at class/image, such as {stray[0]}: move them")
    classes = sorted({image.split("/")[0] for image in tree.images})
    records: list[dict[str, object]] = [
        {"id": image, "path": tree.prefix + image, "label": classes.index(image.split("/")[0]), "domain": 0}
        for image in tree.images
    ]
    return make_image_table("folder", tree.root, classes, ["all"], records)


def _read_listing(place: Path, label: str, context: str | None) -> ImageTable:
    """A CSV table of images, with columns of the user's own names."""
    rows = pd.read_csv(place, dtype=str, keep_default_na=False)
    for name in ("path", label, *([context] if context else [])):
        if name not in rows:
            raise UserError(unknown_name("column", name, map(str, rows.columns)))
    classes = sorted(set(rows[label]))
    contexts = sorted(set(rows[context])) if context else ["all"]
    records: list[dict[str, object]] = [
        {"id": path, "path": path, "label": classes.index(name), "domain": contexts.index(where)}
        for path, name, where in zip(rows["path"], rows[label], _contexts(rows, context), strict=True)
    ]
    return make_image_table("listing", place.parent, classes, contexts, records)


def _contexts(rows: pd.DataFrame, context: str | None) -> Sequence[str]:
    return rows[context].tolist() if context else ["all"] * len(rows)
