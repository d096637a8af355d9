"""The images that are looked at: some of a part of a run's split, or the user's own files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from stablenet.engine.runs import Run
from stablenet.errors import UserError
from stablenet.evaluation.predict import read_pixels
from stablenet.saliency.masks import find_digit_masks, read_mask_files


@dataclass(frozen=True)
class Subjects:
    """ids: names of the images.   pixels: (H, W, 3) uint8 each.   labels, domains: words, "" where unknown.
    masks: (n, s, s) bool at the network's image size, None where nobody knows the object's pixels.
    """

    ids: tuple[str, ...]
    pixels: tuple[Tensor, ...]
    labels: tuple[str, ...]
    domains: tuple[str, ...]
    masks: Tensor | None

    def __len__(self) -> int:
        return len(self.ids)


def choose_subjects(run: Run, count: int, part: str = "test", root: Path | None = None) -> Subjects:
    """Images of a part, class by class in turn, spread evenly over each class; the same in every call."""
    if count < 1:
        raise UserError(f"the number of images must be at least 1, got {count}")
    data = run.open_data(root)
    samples = data.open_part(part)
    if not len(samples):
        raise UserError(f"the split of {run.path} has no images in the part {part!r}: choose another --part")
    chosen = spread_over_classes(samples.y, count)
    rows = samples.row[chosen]
    ids = tuple(samples.pixels.ids[row] for row in rows.tolist())
    return Subjects(
        ids=ids,
        pixels=tuple(samples.pixels.read(rows)),
        labels=tuple(run.classes[k] for k in samples.y[chosen].tolist()),
        domains=tuple(run.manifest.domains[k] for k in samples.domain[chosen].tolist()),
        masks=find_digit_masks(data.table, ids, run.config.data.image_size),
    )


def spread_over_classes(y: Tensor, count: int) -> Tensor:
    """Positions (≤ count,) in y (n,): one of every class in turn, at even steps through each class."""
    classes = y.unique().tolist()
    turns = -(-count // len(classes))
    own = [(y == label).nonzero().squeeze(1) for label in classes]
    steps = [places[torch.linspace(0, len(places) - 1, min(turns, len(places))).round().long()] for places in own]
    dealt = [places[turn] for turn in range(turns) for places in steps if turn < len(places)]
    return torch.stack(dealt[:count])


def read_subjects(run: Run, paths: Sequence[Path], masks: Path | None = None) -> Subjects:
    """The user's own image files, with masks from a folder where there are any."""
    side = run.config.data.image_size
    return Subjects(
        ids=tuple(path.name for path in paths),
        pixels=tuple(read_pixels(path, run.config.data.store_size) for path in paths),
        labels=("",) * len(paths),
        domains=("",) * len(paths),
        masks=None if masks is None else read_mask_files(masks, paths, side),
    )
