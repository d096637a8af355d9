"""One reader per data set, gathered by name."""

from stablenet.data.sources import bsds500, embedded, folder, listing, mnist, mnist_m, nico, pacs, vlcs
from stablenet.data.sources.base import SOURCES, Download, Source, Table, read_source

_EMBEDDED = Source(
    name="embedded",
    title="Handwritten digits on drawn textures; ships with the package",
    origin="scikit-learn's copy of the UCI optical digits; textures drawn by this package",
    licence="CC BY 4.0 (digits), MIT (textures)",
    layouts=("none: nothing to fetch",),
    read=lambda root: embedded.embedded_table(),
    counts={"train": 1297, "test": 500},
    needs_root=False,
)

for _source in (
    pacs.SOURCE,
    vlcs.SOURCE,
    nico.SOURCE,
    nico.ANIMAL_SOURCE,
    nico.VEHICLE_SOURCE,
    mnist.SOURCE,
    bsds500.SOURCE,
    mnist_m.SOURCE,
    _EMBEDDED,
    folder.SOURCE,
    listing.SOURCE,
):
    SOURCES.add(_source.name, _source)

__all__ = ["SOURCES", "Download", "Source", "Table", "read_source"]
