"""The data sets as torch data sets, for your own loops: `stablenet.datasets.load("pacs", split="classic", …)`.

Pixels are decoded once and kept in the cache, as in training, and read when a part is first used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from stablenet.data.image_list import ImageList
from stablenet.data.loader import PartSamples
from stablenet.data.manifest import Manifest
from stablenet.data.prepare import have_one_size
from stablenet.data.sources import SOURCES, AnyImageList, read_source
from stablenet.data.sources.own import open_own
from stablenet.data.splits import apply_split
from stablenet.engine.config import DataConfig
from stablenet.engine.run_data import RunData
from stablenet.errors import UserError
from stablenet.registry import unknown_name
from stablenet.values import Count, Seed, check_arguments

MANIFEST = ".tsv"  # the ending of a split that is a file


def load(
    source: str | Path,
    *,
    split: str | Path | None = None,
    root: Path | str | None = None,
    seed: Seed = 0,
    size: Count | None = None,
    transform: Callable[[Image.Image], Any] | None = None,
    **parameters: Any,
) -> SplitDatasets:
    """Split a data set into training, validation and test.

    source: a name from `stablenet list data`, or your own images: class/image or domain/class/image, or an image list.
    split: a name from `stablenet data list`, with its parameters, as in `target="sketch"`, or the file of
        `stablenet data split`; by default the one that fits the data.
    root: folder or archive of a source with a name.   seed: of the split.
    size: side of the stored square images; None keeps their size, which must then be the same for all.
    transform: maps a PIL image to the first element of an item; by default a tensor (3, H, W) in 0..1.
    """
    check_arguments(load, locals())
    table = _read(source, None if root is None else Path(root))
    if isinstance(split, Path) or (split or "").endswith(MANIFEST):
        if parameters:
            raise UserError(f"the split {split} is a file: leave out its parameters {', '.join(parameters)}")
        manifest = Manifest.load(Path(str(split)))
    else:
        manifest = apply_split(table, str(split or ""), seed, parameters)
    if size is None and isinstance(table, ImageList) and not have_one_size(table):
        raise UserError(f"the images of {table.known_as} have several sizes: give one for all, such as size=256")
    return SplitDatasets(RunData(DataConfig(store_size=size), manifest, None, table=table), transform)


def _read(source: str | Path, root: Path | None) -> AnyImageList:
    """The images of a named source, or of your own folder or file."""
    if str(source) in SOURCES:
        return read_source(str(source), root)
    place = Path(source)
    if not place.exists():
        raise UserError(f"{unknown_name('data source', str(source), SOURCES)}; nor is there a folder or file {place}")
    return open_own(place)


class SplitDatasets:
    """The parts of a split, each read when it is first asked for.

    classes, domains: names.   groups: names of class × domain; group g is class g // len(domains) in domain g %
        len(domains).   manifest: which image is in which part.
    """

    def __init__(self, data: RunData, transform: Callable[[Image.Image], Any] | None) -> None:
        self.manifest = data.manifest
        self.classes, self.domains = data.manifest.classes, data.manifest.domains
        self.groups = tuple(f"{label} on {domain}" for label in self.classes for domain in self.domains)
        self._data, self._transform = data, transform

    @cached_property
    def train(self) -> ImageDataset:
        return self._open("train")

    @cached_property
    def validation(self) -> ImageDataset:
        """Held out of the training domains, for choosing a model; it may be empty."""
        return self._open("validation")

    @cached_property
    def test(self) -> ImageDataset:
        """The target."""
        return self._open("test")

    def __repr__(self) -> str:
        counts = ", ".join(f"{part} {(self.manifest.rows['part'] == part).sum():,}" for part in _PARTS)
        what = f"{len(self.classes)} classes, {len(self.domains)} domains"
        return f"{self.manifest.source}, {self.manifest.split}: {what}; {counts}"

    def _open(self, part: str) -> ImageDataset:
        return ImageDataset(self, self._data.open_part(part), self._transform)


_PARTS = ("train", "validation", "test")


class ImageDataset(Dataset[tuple[Any, int]]):
    """Images and their classes, (image, class); the other labels of all samples as tensors.

    classes, domains, groups: names, as in `SplitDatasets`.
    targets, target_domains, target_groups: (n,) int64, into these names.   ids: (n,) names of the images.
    """

    def __init__(
        self, splits: SplitDatasets, samples: PartSamples, transform: Callable[[Image.Image], Any] | None = None
    ) -> None:
        self.classes, self.domains, self.groups = splits.classes, splits.domains, splits.groups
        self.targets, self.target_domains = samples.y, samples.domain
        self.target_groups = samples.y * len(splits.domains) + samples.domain
        self._samples, self._transform = samples, transform

    @cached_property
    def ids(self) -> list[str]:
        known = self._samples.pixels.ids
        return [known[row] for row in self._samples.row.tolist()]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, place: int) -> tuple[Any, int]:
        pixels = self._samples.pixels.read(self._samples.row[place].view(1))[0]
        label = int(self.targets[place])
        if self._transform is not None:
            return self._transform(Image.fromarray(pixels.numpy())), label
        return scale(pixels), label


def scale(pixels: Tensor) -> Tensor:
    """(H, W, 3) uint8 to (3, H, W) float32 in 0..1."""
    return pixels.permute(2, 0, 1).to(torch.float32) / 255
