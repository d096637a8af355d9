"""Shared by all HTML pages: one style, SVG charts that follow light and dark mode, embedded images.

In reading order: `plots` (lines, bars and the charts that several pages draw) and `write` (from a template and values
to a page in one file, with its pictures).
"""

from stablenet.files import write_text
from stablenet.pages.plots import (
    WIDTH,
    Curve,
    Drawing,
    Scale,
    choose_shade,
    choose_ticks,
    draw_curves,
    draw_histogram,
    draw_maps,
    draw_percent_grid,
    draw_weight_histogram,
    shorten,
)
from stablenet.pages.write import Picture, add_script, make_picture, render, write_points

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
