"""One pass over the images: shallow features, and a thumbnail of each for the page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stablenet.diagnose.subject import Picture, Subject
from stablenet.errors import UserError

Extract = Callable[[Tensor], tuple[Tensor, Tensor]]
Progress = Callable[[int, int], None]
BATCH = 64
THUMBNAIL = 64
FEWEST_OF_CLASS = 10  # below that no share of a class can be told
FEWEST = 50
MOST_UNREADABLE = 0.1


@dataclass(frozen=True)
class Collected:
    """subject: the images that could be read.   whole, border: (n, m) features.   thumbnails: (n, t, t, 3) uint8."""

    subject: Subject
    whole: Tensor
    border: Tensor
    thumbnails: Tensor


def choose_images(subject: Subject, limit: int, seed: int) -> Subject:
    """At most `limit` images, drawn at random, of the classes that have enough; notes tell what was left out."""
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
            f"{subject.name} has {len(subject)} images in {len(np.unique(subject.y))} classes of at least "
            f"{FEWEST_OF_CLASS}: at least {FEWEST} images in two classes are needed"
        )
    return subject


def collect(subject: Subject, extract: Extract, side: int, progress: Progress | None = None) -> Collected:
    """Read every image once, with all cores.   side: what `extract` is to see, (b, side, side, 3)."""
    wholes, borders, thumbnails, read = [], [], [], []
    for start, pictures in _read_batches(subject, side):
        good = [number for number, picture in enumerate(pictures) if picture is not None]
        read += [start + number for number in good]
        if good:
            pixels = torch.from_numpy(np.stack([picture for picture in pictures if picture is not None]))
            whole, border = extract(pixels)
            wholes.append(whole)
            borders.append(border)
            thumbnails.append(_shrink(pixels))
        if progress is not None:
            progress(start + len(pictures), len(subject))
    subject = _keep_readable(subject, np.array(read, dtype=np.int64))
    return Collected(subject, torch.cat(wholes), torch.cat(borders), torch.cat(thumbnails))


def _read_batches(subject: Subject, side: int) -> Iterator[tuple[int, list[Picture | None]]]:
    def load(position: int) -> Picture | None:
        try:
            return subject.load(position, side)
        except MemoryError:
            raise
        except Exception:  # decoders raise whatever they like on broken bytes; such images are counted and told
            return None

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for start in range(0, len(subject), BATCH):
            yield start, list(pool.map(load, range(start, min(start + BATCH, len(subject)))))


def _keep_readable(subject: Subject, read: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Subject:
    lost = len(subject) - len(read)
    if lost > MOST_UNREADABLE * len(subject):
        raise UserError(f"{lost} of {len(subject)} images of {subject.name} cannot be read: look at the files first")
    return subject.take(read, f"{lost} images could not be read") if lost else subject


def _shrink(pixels: Tensor) -> Tensor:
    side = pixels.shape[1]
    if side <= THUMBNAIL:
        return pixels
    maps = torch.nn.functional.interpolate(pixels.permute(0, 3, 1, 2).float(), (THUMBNAIL, THUMBNAIL), mode="area")
    return maps.permute(0, 2, 3, 1).round().to(torch.uint8)
