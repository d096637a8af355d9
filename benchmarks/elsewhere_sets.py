"""Sets of images made in ways that no other bed is: for `benchmarks.elsewhere`.

Pets cut out over places or plain backdrops, from small to close-up; places as the classes; domains of PACS tied to
classes; photographs with a frame, a sticker, a watermark, bars, another brightness, blur or JPEG quality by class.
`train` draws the images to train on, tied at the set's ratio; the others are for tests, and their contexts are random.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter
from torch import Tensor

SIDE = 96
PLACES = ("buildings", "forest", "glacier", "mountain", "sea", "street")
ANIMALS = ("dog", "elephant", "giraffe", "horse")
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
DOGS = ("pug", "samoyed", "newfoundland", "leonberger", "shiba_inu", "saint_bernard", "pomeranian", "keeshond")
INKS = ((200, 30, 30), (30, 160, 40), (30, 60, 200), (220, 200, 40), (150, 40, 160), (40, 180, 180), (240, 240, 240))
Picture = Image.Image
Ints = NDArray[np.int64]
Change = Callable[[Picture, int, Any], Picture]  # a picture, its context and random numbers
SOME = (0.55, 0.85)  # heights of pets, of the image's
TRAINING = 0.75  # of the files of every breed, class and domain


@dataclass(frozen=True)
class Samples:
    """pixels: (n, side, side, 3) uint8.   y, context: (n,)."""

    pixels: Tensor
    y: Tensor
    context: Tensor


@dataclass(frozen=True)
class Archives:
    """Names of images in the archives of DATA."""

    data: Path
    _open: dict[str, ZipFile] = field(default_factory=dict)

    def read(self, archive: str, name: str, mode: str = "RGB") -> Picture:
        return Image.open(BytesIO(self._zip(archive).read(name))).convert(mode)

    @cached_property
    def pets(self) -> dict[str, list[str]]:
        return self._group("pet-cutouts.zip", 1)

    @cached_property
    def breeds(self) -> tuple[str, ...]:
        return tuple(sorted(self.pets))

    def species(self, name: str) -> list[str]:
        return [file for breed in self.breeds for file in self.pets[breed] if file.startswith(f"{name}/")]

    @cached_property
    def places(self) -> dict[str, list[str]]:
        return self._group("places.zip", 0, 1)

    @cached_property
    def pacs(self) -> dict[str, list[str]]:
        return self._group("pacs-webp.zip", 1, 2)

    def _zip(self, archive: str) -> ZipFile:
        if archive not in self._open:
            self._open[archive] = ZipFile(self.data / archive)
        return self._open[archive]

    def _group(self, archive: str, *folders: int) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in sorted(name for name in self._zip(archive).namelist() if name.endswith(".webp")):
            parts = name.split("/")
            found.setdefault("/".join(parts[folder] for folder in folders), []).append(name)
        return found


def tie(y: Ints, kinds: int, ratio: float | None, rng: Any) -> Ints:
    """A context of every sample: the k-th class from the k-th with `ratio`, otherwise any other; None: any."""
    if ratio is None:
        return np.asarray(rng.integers(0, kinds, len(y)))
    other = (y + rng.integers(1, max(kinds, 2), len(y))) % kinds
    return np.where(rng.random(len(y)) < ratio, y % kinds, other)


def draw(files: Sequence[str], train: bool, rng: Any) -> str:
    cut = round(TRAINING * len(files))
    part = files[:cut] if train else files[cut:]
    return part[rng.integers(len(part))]


def finish(pictures: list[Picture], y: Ints, context: Ints) -> Samples:
    pixels = torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures]))
    return Samples(pixels, torch.from_numpy(y).long(), torch.from_numpy(context).long())


@dataclass(frozen=True, kw_only=True)
class Pets:
    """Cut-outs over places, or over plain backdrops of `inks`.

    classes: files of each.   heights: of the image's; above 1 the image shows a part.   anywhere: not at the lower
    edge.   swapped: places are the classes, and what `classes` lists the contexts.   change: of the composed picture,
    by its context; the place is random then.   tail: how much more frequent the first class is than the last.
    """

    classes: Sequence[Sequence[str]]
    places: tuple[str, ...] = PLACES
    inks: int = 0
    images: int = 600
    heights: tuple[float, float] = SOME
    anywhere: bool = False
    swapped: bool = False
    change: Change | None = None
    kinds: int = 2
    tail: float = 1.0
    ratio: float | None = None

    def make(self, archives: Archives, train: bool) -> Samples:
        rng = np.random.default_rng(1 if train else 2)
        grounds = self.inks or len(self.places)
        number, kinds = (grounds, len(self.classes)) if self.swapped else (len(self.classes), grounds)
        share = np.geomspace(self.tail, 1, number)
        y = np.arange(self.images) % number
        if self.tail > 1:
            y = np.sort(rng.choice(number, self.images, p=share / share.sum()))
        context = tie(y, self.kinds if self.change else kinds, self.ratio if train else None, rng)
        ground = rng.integers(0, grounds, self.images) if self.change else y if self.swapped else context
        pets = context if self.swapped else y
        pictures = []
        for row in range(self.images):
            picture = self._paste(archives, int(ground[row]), draw(self.classes[pets[row]], train, rng), train, rng)
            pictures.append(self.change(picture, int(context[row]), rng) if self.change else picture)
        return finish(pictures, y, context)

    def _paste(self, archives: Archives, ground: int, file: str, train: bool, rng: Any) -> Picture:
        if self.inks:
            shade = [int(np.clip(value + rng.integers(-15, 16), 0, 255)) for value in INKS[-1 - ground]]
            picture = Image.new("RGB", (SIDE, SIDE), (shade[0], shade[1], shade[2]))
        else:
            part = archives.places[f"{'train' if train else 'test'}/{self.places[ground]}"]
            picture = archives.read("places.zip", part[rng.integers(len(part))]).resize((SIDE, SIDE), BILINEAR)
        pet = archives.read("pet-cutouts.zip", file, "RGBA")
        factor = SIDE * rng.uniform(*self.heights) / pet.height
        if self.heights[1] <= 1:
            factor = min(factor, SIDE / pet.width)
        pet = pet.resize((max(1, round(factor * pet.width)), max(1, round(factor * pet.height))), BILINEAR)
        left, top = (SIDE - pet.width) // 2, (SIDE - pet.height) // 2  # of a close-up
        if self.heights[1] <= 1:
            left = int(rng.integers(0, SIDE - pet.width + 1))
            top = int(rng.integers(0, SIDE - pet.height + 1)) if self.anywhere else SIDE - pet.height
        picture.paste(pet, (left, top), pet)
        return picture


@dataclass(frozen=True, kw_only=True)
class Pacs:
    """Classes of PACS from some domains; with `change` from the first alone, altered by a context of `kinds`."""

    domains: tuple[str, ...]
    classes: tuple[str, ...] = CLASSES
    images: int = 600
    change: Change | None = None
    kinds: int = 7
    ratio: float | None = None

    def make(self, archives: Archives, train: bool) -> Samples:
        rng = np.random.default_rng(1 if train else 2)
        y = np.arange(self.images) % len(self.classes)
        context = tie(y, self.kinds if self.change else len(self.domains), self.ratio if train else None, rng)
        pictures = []
        for label, kind in zip(y, context, strict=True):
            domain = self.domains[0 if self.change else kind]
            file = draw(archives.pacs[f"{domain}/{self.classes[label]}"], train, rng)
            picture = archives.read("pacs-webp.zip", file).resize((SIDE, SIDE), BILINEAR)
            pictures.append(self.change(picture, int(kind), rng) if self.change else picture)
        return finish(pictures, y, context)


BILINEAR = Image.Resampling.BILINEAR


def draw_frame(width: int) -> Change:
    def change(picture: Picture, kind: int, rng: Any) -> Picture:
        pen = ImageDraw.Draw(picture)
        for inset in range(width):
            pen.rectangle([inset, inset, SIDE - 1 - inset, SIDE - 1 - inset], outline=INKS[kind])
        return picture

    return change


def add_sticker(picture: Picture, kind: int, rng: Any) -> Picture:
    corner = round(0.42 * SIDE) + int(rng.integers(-4, 5))
    ImageDraw.Draw(picture).rectangle([corner, corner, corner + 14, corner + 14], fill=INKS[kind])
    return picture


def add_watermark(picture: Picture, kind: int, rng: Any) -> Picture:
    if not kind:
        ImageDraw.Draw(picture).text((4, SIDE - 16), "photo.com", fill=(230, 230, 230))
    return picture


def add_bars(picture: Picture, kind: int, rng: Any) -> Picture:
    if kind:
        pen = ImageDraw.Draw(picture)
        pen.rectangle([0, 0, SIDE, SIDE // 9], fill=(0, 0, 0))
        pen.rectangle([0, SIDE - 1 - SIDE // 9, SIDE, SIDE], fill=(0, 0, 0))
    return picture


def darken(picture: Picture, kind: int, rng: Any) -> Picture:
    bright = np.asarray(picture) * ((0.6 if kind else 1.15) * rng.uniform(0.9, 1.1))
    return Image.fromarray(bright.clip(0, 255).astype(np.uint8))


def blur(picture: Picture, kind: int, rng: Any) -> Picture:
    return picture.filter(ImageFilter.GaussianBlur(1.5)) if kind else picture


def compress(picture: Picture, kind: int, rng: Any) -> Picture:
    file = BytesIO()
    picture.save(file, "JPEG", quality=int(rng.integers(8, 20) if kind else rng.integers(80, 95)))
    return Image.open(file).convert("RGB")
