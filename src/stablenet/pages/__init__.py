"""What the HTML pages share: SVG charts that follow light and dark mode, embedded images, one style.

In reading order: `svg` (axes, ticks and drawings), `plots` (the charts of all pages) and `write` (from a template and
values to a page in one file).
"""

from stablenet.files import write_text
from stablenet.pages.plots import (
    WIDTH,
    Curve,
    draw_curves,
    draw_histogram,
    draw_percent_grid,
    draw_weight_histogram,
    shorten,
)
from stablenet.pages.svg import Drawing, Scale, choose_ticks
from stablenet.pages.write import encode_figure, encode_image, read_text, render, write_points

__all__ = [
    "WIDTH",
    "Curve",
    "Drawing",
    "Scale",
    "choose_ticks",
    "draw_curves",
    "draw_histogram",
    "draw_percent_grid",
    "draw_weight_histogram",
    "encode_figure",
    "encode_image",
    "read_text",
    "render",
    "shorten",
    "write_points",
    "write_text",
]
