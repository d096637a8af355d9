"""From a template and values to a page in one file: nothing on it is loaded from elsewhere."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from importlib.resources import files
from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

_PIXELATED = 64  # sides up to this are kept to the pixel
_LARGEST = 192  # pixels: twice what a page shows, for fine screens
Filters = Mapping[str, Callable[..., Any]]
MINUS = "−"


def render(template: str, values: Mapping[str, Any], filters: Filters | None = None) -> str:
    """A template, by its path in this package, filled; a name without a value is an error.

    `base_style` is the pages' common style.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("stablenet", "."),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters or {})
    environment.globals["base_style"] = Markup(read_text("pages/base.css"))
    return environment.get_template(template).render(**values)


def read_text(name: str) -> str:
    """A file that lies in this package."""
    return files("stablenet").joinpath(name).read_text("utf-8")


def write_points(value: float) -> str:
    """A difference in points with its sign: +1.3 or −0.4."""
    return f"{value:+.1f}".replace("-", MINUS)


def encode_image(image: Tensor) -> str:
    """(H, W, 3) uint8 as a data URI: small ones as they are, large ones shrunk, as photographs."""
    from PIL import Image

    buffer = BytesIO()
    picture = Image.fromarray(image.numpy())
    if max(picture.size) <= _PIXELATED:
        picture.save(buffer, "PNG", optimize=True)
        return _encode(buffer)
    picture.thumbnail((_LARGEST, _LARGEST))
    picture.save(buffer, "JPEG", quality=85, optimize=True)
    return _encode(buffer, "jpeg")


def encode_figure(figure: Figure) -> str:
    """A figure of matplotlib as a data URI with a PNG; it is closed."""
    from matplotlib import pyplot as plt

    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=144)
    plt.close(figure)
    return _encode(buffer)


def _encode(buffer: BytesIO, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{b64encode(buffer.getvalue()).decode('ascii')}"
