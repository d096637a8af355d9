"""From the bytes of an encoded image to pixels."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def decode(data: bytes, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """Encoded image to (H, W, 3) uint8 in RGB, resized to `size` = (H, W) as a whole if it has another.

    Resizing is bilinear with antialiasing and does not keep the proportions, as is usual in this field:
    nothing at the border is lost.
    """
    with Image.open(BytesIO(data)) as opened:
        transparent = opened.mode == "P" and "transparency" in opened.info
        image = opened.convert("RGBA").convert("RGB") if transparent else opened.convert("RGB")
    if size is not None and image.size != (size[1], size[0]):
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(image)


def read_size(data: bytes) -> tuple[int, int]:
    """Height and width from the header alone."""
    with Image.open(BytesIO(data)) as image:
        return image.height, image.width
