"""What the pages share: SVG charts that follow light and dark, pictures inside the page, one style."""

from stablenet.files import write_text
from stablenet.page.svg import Drawing, Scale, choose_ticks
from stablenet.page.write import encode_figure, encode_image, read_text, render

__all__ = ["Drawing", "Scale", "choose_ticks", "encode_figure", "encode_image", "read_text", "render", "write_text"]
