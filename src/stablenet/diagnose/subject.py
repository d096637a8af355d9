"""Labelled images to diagnose, from a folder, an image list, a named source or a run, and their features."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from stablenet.algorithms.stablenet import read_dependence
from stablenet.data.columns import PART
from stablenet.data.decode import decode
from stablenet.data.image_list import ComposedList, CutoutList, ImageList
from stablenet.data.loader import PartSamples, read_part, render_part
from stablenet.data.manifest import Manifest
from stablenet.data.prepare import prepare_part
from stablenet.data.sources import SOURCES, AnyImageList, read_source
from stablenet.data.sources.own import open_own
from stablenet.data.splits import split_images
from stablenet.engine.run import Run
from stablenet.errors import UserError, write_count

Picture = NDArray[np.uint8]  # (s, s, 3)


@dataclass(frozen=True)
class Subject:
    """n labelled images; none is read before `load` asks for it.

    y: (n,) int64, into classes.   context: (n,) int64, into contexts, or None.
    load: a position in 0 … n−1 and a side s to an image (s, s, 3).   side: of the images, where it is one for all.
    show: a position to the image (H, W, 3) in its own proportions.
    ids, paths: (n,) names of the images and of their files; a path is "" where the pixels lie in no file of their own.
    weights: (n,) that a run trained with, None where there are none.   dependence: before and after these weights, by
        the run's records.   weights_note: where the weights come from, or why there are none.
    """

    name: str
    classes: tuple[str, ...]
    contexts: tuple[str, ...]
    y: NDArray[np.int64]
    context: NDArray[np.int64] | None
    load: Callable[[int, int], Picture]
    show: Callable[[int], Picture]
    ids: NDArray[np.object_]
    paths: NDArray[np.object_]
    side: int | None = None
    notes: tuple[str, ...] = ()
    weights: NDArray[np.float32] | None = None
    dependence: tuple[float, float] | None = None
    weights_note: str = ""

    def __len__(self) -> int:
        return len(self.y)

    def take(self, positions: NDArray[np.int64], *notes: str) -> Subject:
        """The images at these positions alone."""
        context = None if self.context is None else self.context[positions]
        weights = None if self.weights is None else self.weights[positions]
        load, show = self.load, self.show
        return replace(
            self,
            y=self.y[positions],
            context=context,
            weights=weights,
            load=lambda position, side: load(int(positions[position]), side),
            show=lambda position: show(int(positions[position])),
            ids=self.ids[positions],
            paths=self.paths[positions],
            notes=(*self.notes, *notes),
        )


@dataclass(frozen=True, kw_only=True)
class Division:
    """How images are split, of which the training part is diagnosed: by a manifest, or a split with its parameters."""

    manifest: Path | None = None
    split: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, table: AnyImageList) -> Manifest | None:
        """The split; None where nothing was said."""
        if self.manifest is not None:
            return Manifest.load(self.manifest)
        if not self.split and not self.parameters:
            return None
        others = {name: value for name, value in self.parameters.items() if name != "seed"}
        return split_images(table, self.split, int(self.parameters.get("seed", 0)), **others)


def open_place(
    place: Path,
    label: str = "",
    context: str | None = None,
    part: str = "",
    root: Path | None = None,
    division: Division | None = None,
) -> Subject:
    """The user's own images, see `open_own`; of a split, or else the given split, the training part."""
    table = open_own(place, label=label, context=context or "", part=part, root=root)
    split = (division or Division()).apply(table)
    if split is not None:
        notes = (*table.notes, f"the training part of the {split.describe()}")
        return from_table(replace(_take_training(table, split), notes=notes))
    if not table.given_parts:
        return from_table(table)
    rows = table.rows[table.rows[PART] == "train"].reset_index(drop=True)
    note = f"the training part of the given split ({table.describe_parts()})"
    return from_table(replace(table, rows=rows, notes=(*table.notes, note)))


def open_source(name: str, root: Path | None, manifest: Path | None, kind: str, given: Mapping[str, Any]) -> Subject:
    """The training part of a split of a named source, or without a split all its images."""
    table = read_source(name, root)
    split = Division(manifest=manifest, split=kind, parameters=given).apply(table)
    if isinstance(table, ComposedList | CutoutList):
        if split is None:
            fitting = "adversarial" if isinstance(table, ComposedList) else "correlated"
            raise UserError(f"{name} is composed by a split: add --split {fitting} --set ratio=0.9, or --manifest")
        return from_samples(_compose_training(table, split), split, table.name)
    return from_table(table if split is None else _take_training(table, split))


def _compose_training(table: ComposedList | CutoutList, split: Manifest) -> PartSamples:
    if isinstance(table, ComposedList):
        return render_part(table, split, "train")
    return read_part(prepare_part(table, split, "train"), split, "train")


def open_run(run: Run, root: Path | None) -> Subject:
    """The training part of a run, with the weights that the run kept.   root: where its source lies."""
    samples = run.open_part("train", root)
    subject = from_samples(samples, run.manifest, run.path.name)
    if not run.folder.weights.exists():
        lacking = "kept none" if run.keeps_weights else f"had none ({run.config.method.name})"
        return replace(subject, weights_note=f"the run {lacking}; ")
    # Images that could not be read when the source was prepared have a row in the table, but no pixels.
    weights = run.weights()["weight"].to_numpy(np.float32)[samples.index.numpy()]
    note = f"those that entered the loss of {run.path.name} in its last epoch, read from {run.folder.weights.name}"
    return replace(subject, weights=weights, dependence=read_dependence(run.records), weights_note=note)


def is_source(name: str) -> bool:
    """Whether a name is that of a published source; the user's own images are given by their place."""
    return name in list(SOURCES) and (bool(SOURCES[name].counts) or not SOURCES[name].needs_root)


def from_table(table: ImageList) -> Subject:
    """The domains are the contexts; one alone says nothing."""
    paths = table.rows["path"].tolist()
    known = table.rows["domain"].nunique() > 1
    return Subject(
        name=table.known_as,
        classes=table.classes,
        contexts=table.domains if known else (),
        y=np.array(table.rows["label"], np.int64),
        context=np.array(table.rows["domain"], np.int64) if known else None,
        load=lambda position, side: decode(table.open_bytes(paths[position]), (side, side)),
        show=lambda position: decode(table.open_bytes(paths[position])),
        ids=np.array(table.rows["id"], object),
        paths=np.array([str(table.root / path) for path in paths], object),
        notes=table.notes,
    )


def from_samples(samples: PartSamples, manifest: Manifest, name: str) -> Subject:
    """A part of a split as a training opens it; its domains are the contexts."""
    known = len(samples.domain.unique()) > 1

    def show(position: int) -> Picture:
        return samples.pixels.read(samples.row[position : position + 1])[0].numpy()

    def load(position: int, side: int) -> Picture:
        image = show(position)
        if image.shape[:2] == (side, side):
            return image
        return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR))

    return Subject(
        name=name,
        classes=manifest.classes,
        contexts=manifest.domains if known else (),
        y=samples.y.numpy(),
        context=samples.domain.numpy() if known else None,
        load=load,
        show=show,
        ids=np.array([samples.pixels.ids[row] for row in samples.row.tolist()], object),
        paths=np.full(len(samples), "", object),
        side=samples.pixels.read(torch.zeros(1, dtype=torch.int64)).shape[1],
        notes=manifest.notes,
    )


def _take_training(table: ImageList, manifest: Manifest) -> ImageList:
    rows = manifest.part("train")[["id", "label", "domain"]]
    joined = rows.merge(table.rows[["id", "path"]], on="id", how="left")
    if joined["path"].isna().any():
        missing = joined.loc[joined["path"].isna(), "id"].iloc[0]
        raise UserError(f"{table.name} has no image {missing}: the manifest was made from another source")
    return replace(table, classes=manifest.classes, domains=manifest.domains, rows=joined)


Extract = Callable[[Tensor], tuple[Tensor, Tensor]]
Progress = Callable[[int, int], None]
IMAGES_AT_ONCE = 64
FEWEST_OF_CLASS = 10  # below that no share of a class can be measured
FEWEST = 50  # images, or rows of a table
MOST_UNREADABLE = 0.1


@dataclass(frozen=True)
class Collected:
    """subject: the images that could be read.   whole, border: (n, m) features."""

    subject: Subject
    whole: Tensor
    border: Tensor


def choose_images(subject: Subject, limit: int, seed: int) -> Subject:
    """At most `limit` images, drawn at random, of the classes that have enough; notes say what was left out."""
    if len(subject) > limit:
        drawn = np.sort(np.random.default_rng(seed).permutation(len(subject))[:limit])
        subject = subject.take(drawn, f"{limit:,} of {len(subject):,} images, drawn at random")
    counts = np.bincount(subject.y, minlength=len(subject.classes))
    rare = [name for name, count in zip(subject.classes, counts, strict=True) if 0 < count < FEWEST_OF_CLASS]
    if rare:
        kept = np.flatnonzero(counts[subject.y] >= FEWEST_OF_CLASS)
        subject = subject.take(kept, f"left out, with fewer than {FEWEST_OF_CLASS} images: {', '.join(rare)}")
    if len(np.unique(subject.y)) < 2 or len(subject) < FEWEST:
        raise UserError(
            f"{subject.name} is too small to diagnose: {write_count(int(counts.sum()), 'image')} in "
            f"{write_count(int((counts > 0).sum()), 'class')}; at least {FEWEST} are needed, "
            f"in two classes of {FEWEST_OF_CLASS} or more"
        )
    return subject


def extract_features(subject: Subject, extract: Extract, side: int, progress: Progress | None = None) -> Collected:
    """Read every image once, with all cores.   side: what `extract` is to see, (b, side, side, 3)."""
    wholes, borders, read = [], [], []
    for start, pictures in _read_batches(subject, side):
        good = [number for number, picture in enumerate(pictures) if picture is not None]
        read += [start + number for number in good]
        _refuse_unreadable(subject, read, start + len(pictures))
        if good:
            pixels = torch.from_numpy(np.stack([picture for picture in pictures if picture is not None]))
            whole, border = extract(pixels)
            wholes.append(whole)
            borders.append(border)
        if progress is not None:
            progress(start + len(pictures), len(subject))
    subject = _keep_readable(subject, read)
    return Collected(subject, torch.cat(wholes), torch.cat(borders))


def _read_batches(subject: Subject, side: int) -> Iterator[tuple[int, list[Picture | None]]]:
    def load(position: int) -> Picture | None:
        try:
            return subject.load(position, side)
        except MemoryError:
            raise
        except Exception:  # decoders raise whatever they like on broken bytes; such images are counted and reported
            return None

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for start in range(0, len(subject), IMAGES_AT_ONCE):
            yield start, list(pool.map(load, range(start, min(start + IMAGES_AT_ONCE, len(subject)))))


def _refuse_unreadable(subject: Subject, read: list[int], seen: int) -> None:
    """Stop as soon as too many images are unreadable, or if none of the first could be read."""
    if seen - len(read) > MOST_UNREADABLE * len(subject) or not read:
        raise UserError(
            f"{seen - len(read)} of the first {seen} images of {subject.name} cannot be read, such as "
            f"{_first_lost(subject, read)}: look at the files first"
        )


def _keep_readable(subject: Subject, read: list[int]) -> Subject:
    lost = len(subject) - len(read)
    if not lost:
        return subject
    note = f"{write_count(lost, 'image')} could not be read, such as {_first_lost(subject, read)}"
    return subject.take(np.array(read, dtype=np.int64), note)


def _first_lost(subject: Subject, read: list[int]) -> str:
    there = set(read)
    return str(next(subject.ids[position] for position in range(len(subject)) if position not in there))
