"""What the HTML pages share: one style, SVG charts that follow light and dark mode, embedded pictures.

In reading order: `svg` (lines, bars and scales), `plots` (charts that several pages draw), `pictures` (embedded, each
can be enlarged) and `write` (from a template and values to a page in one file).
"""

from stablenet.files import write_text
from stablenet.pages.pictures import Picture, make_picture
from stablenet.pages.plots import (
    WIDTH,
    Curve,
    choose_shade,
    draw_curves,
    draw_histogram,
    draw_maps,
    draw_percent_grid,
    draw_weight_histogram,
    shorten,
)
from stablenet.pages.svg import Drawing, Scale, choose_ticks
from stablenet.pages.write import add_script, render, write_points

__all__ = [
    "WIDTH",
    "Curve",
    "Drawing",
    "Picture",
    "Scale",
    "add_script",
    "choose_shade",
    "choose_ticks",
    "draw_curves",
    "draw_histogram",
    "draw_maps",
    "draw_percent_grid",
    "draw_weight_histogram",
    "make_picture",
    "render",
    "shorten",
    "write_points",
    "write_text",
]
