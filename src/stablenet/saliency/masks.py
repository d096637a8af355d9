"""Which pixels belong to the object, where that is known: digits know their ink, files may have masks beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from stablenet.data.sources import Table
from stablenet.data.table import ComposedTable
from stablenet.errors import UserError

INK = 64  # of 255: fainter ink is smoothing at the border of a stroke


def share_on_object(maps: Tensor, masks: Tensor) -> Tensor:
    """Share of every map's saliency on its object.   maps: (n, s, s).   masks: (n, s, s) bool.   Returns (n,).

    NaN where a map is zero everywhere: a network whose units are all off there looks at nothing. Compare a
    share with the object's share of the area, `masks.float().mean((1, 2))`: a flat map has just that.
    """
    return (maps * masks).sum((1, 2)) / maps.sum((1, 2))


def find_digit_masks(table: Table, ids: Sequence[str], side: int) -> Tensor | None:
    """(n, side, side) bool, the ink of composed images; None where a source's table has no masks."""
    if not isinstance(table, ComposedTable):
        return None
    numbers = {name: number for number, name in enumerate(table.rows["id"])}
    ink = torch.from_numpy(table.read_digits()[[numbers[name] for name in ids]]) >= INK
    return resize_masks(ink, side)


def read_mask_files(folder: Path, paths: Sequence[Path], side: int) -> Tensor:
    """(n, s, s) bool from image files of the same names, anything but black being the object."""
    from PIL import Image

    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: give the folder with one mask per image, of the same name, as PNG")
    masks = []
    for path in paths:
        file = folder / f"{path.stem}.png"
        if not file.is_file():
            raise UserError(f"the image {path} has no mask {file}: every image needs one, white on black")
        with Image.open(file) as image:
            masks.append(resize_masks(torch.from_numpy(np.array(image.convert("L")))[None] > 0, side)[0])
    return torch.stack(masks)


def resize_masks(masks: Tensor, side: int) -> Tensor:
    """(n, H, W) bool to (n, side, side) by the nearest pixel."""
    return functional.interpolate(masks[:, None].float(), size=(side, side), mode="nearest")[:, 0] > 0.5
