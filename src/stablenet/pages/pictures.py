"""Pictures that are embedded in a page: small ones to the pixel, photographs as JPEG."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

TINY = 64  # pixels: sides up to this are kept to the pixel, and enlarged without smoothing
LARGEST = 288  # pixels of the longer side: a page shows 96, and all of them when a picture is enlarged
QUALITY = 80


@dataclass(frozen=True)
class Picture:
    """uri: the image itself.   text: what it shows, for those who do not see it.   caption: what stands below.
    tiny: drawn to the pixel.   marked: framed.
    """

    uri: str
    text: str
    caption: str = ""
    tiny: bool = False
    marked: bool = False


def make_picture(image: Tensor, text: str, caption: str = "", marked: bool = False) -> Picture:
    """image: (H, W, 3) uint8."""
    return Picture(encode_image(image), text, caption, max(image.shape[:2]) <= TINY, marked)


def encode_image(image: Tensor) -> str:
    """(H, W, 3) uint8 as a data URI: small ones as they are, large ones shrunk, as photographs."""
    from PIL import Image

    buffer = BytesIO()
    picture = Image.fromarray(image.numpy())
    if max(picture.size) <= TINY:
        picture.save(buffer, "PNG", optimize=True)
        return _encode(buffer)
    picture.thumbnail((LARGEST, LARGEST))
    picture.save(buffer, "JPEG", quality=QUALITY, optimize=True)
    return _encode(buffer, "jpeg")


def _encode(buffer: BytesIO, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{b64encode(buffer.getvalue()).decode('ascii')}"
