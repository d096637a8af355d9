"""Renders a template into a self-contained page, which loads nothing from other files or sites.

Every page carries a content security policy. It allows the style and the scripts of this package by their hashes, and
pictures that are embedded; a script or a style injected by a name in the data is not among them.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markupsafe import Markup
    from torch import Tensor


TINY = 64  # pixels: sides up to this are kept to the pixel, and enlarged without smoothing
LARGEST = 288  # pixels of the longer side: a page shows 96, and all of them when a picture is enlarged
QUALITY = 80


@dataclass(frozen=True)
class Picture:
    """uri: the image itself.   text: a description for those who cannot see it.   caption: the text below it.
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


Filters = Mapping[str, Callable[..., Any]]
MINUS = "−"
STYLE, SCRIPT = "pages/base.css", "pages/page.js"


def render(
    template: str, values: Mapping[str, Any], filters: Filters | None = None, scripts: Sequence[str] = ()
) -> str:
    """A template, by its path in this package, filled; a name without a value is an error.

    scripts: files of this package that the page runs in addition to the common one.
    Names of files that are not valid UTF-8 are shown with escapes.
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
    environment.filters.update({"code": mark_code, "breakable": mark_breaks, **(filters or {})})
    texts = [read_text(name) for name in (SCRIPT, *scripts)]
    environment.globals |= {
        "policy": write_policy(texts),
        "style": Markup(read_text(STYLE)),
        "scripts": [Markup(text) for text in texts],
    }
    return environment.get_template(template).render(**values).encode(errors="backslashreplace").decode()


def mark_code(text: str) -> Markup:
    """A sentence with its `quoted` commands as code."""
    from markupsafe import Markup, escape

    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick of a name
        return escape(text)
    marked = (Markup("<code>{}</code>").format(part) if k % 2 else escape(part) for k, part in enumerate(parts))
    return Markup("").join(marked)


def mark_breaks(name: str) -> Markup:
    """A name that a narrow column breaks after its underscores and the like, rather than within a word."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([_./])(?=\w)", r"\1<wbr>", str(escape(name))))


def write_policy(scripts: Sequence[str], connect: str = "'none'") -> str:
    """The content security policy of a page with the common style and these scripts.

    connect: the addresses that a script may request, for a page that is served.
    """
    run, look = " ".join(_hash(text) for text in scripts), _hash(read_text(STYLE))
    return (
        f"default-src 'none'; img-src data:; style-src {look}; script-src {run}; connect-src {connect}; "
        "base-uri 'none'; form-action 'none'"
    )


def add_script(page: str, scripts: Sequence[str], more: str) -> str:
    """A finished page with another script, which may call the page's server.   scripts: files it was rendered with.

    Without `more` in its policy the browser would refuse it.
    """
    texts = [read_text(name) for name in (SCRIPT, *scripts)]
    page = page.replace(_escape(write_policy(texts)), _escape(write_policy([*texts, more], "'self'")), 1)
    head, _, tail = page.rpartition("</body>")
    return f"{head}<script>{more}</script>\n</body>{tail}"


def _escape(text: str) -> str:
    from markupsafe import escape

    return str(escape(text))


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode('ascii')}'"


@cache
def read_text(name: str) -> str:
    """A file that lies in this package."""
    return files("stablenet").joinpath(name).read_text("utf-8")


def write_points(value: float) -> str:
    """A difference in points with its sign: +1.3 or −0.4; 0.0 has none."""
    text = f"{value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", MINUS)
