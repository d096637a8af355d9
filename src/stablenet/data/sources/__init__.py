"""One reader per data set, registered by name below.

In reading order: `source` (what a reader declares, and how public files are downloaded), `folder` (trees of images, and
how a copy differs from what is expected), `own` (your own images, in folders or lists, with `shards`, data sets with
embedded images), `photos` (PACS, VLCS and NICO), `digits` (MNIST, BSDS500, MNIST-M, which is made of both, and the
bundled data) and `composed` (cut-outs over backgrounds: your own, and pets over places).
"""

from stablenet.data.sources import composed, digits, own, photos
from stablenet.data.sources.source import SOURCES, AnyImageList, Download, Source, read_source

_EMBEDDED = Source(
    name="embedded",
    title="Handwritten digits on drawn textures; ships with the package",
    origin="scikit-learn's copy of the UCI optical digits; textures drawn by this package",
    licence="CC BY 4.0 (digits), MIT (textures)",
    layouts=("none: nothing to download",),
    read=lambda root: digits.read_embedded(),
    counts={"train": 1297, "test": 500},
    needs_root=False,
)

for _source in (
    photos.PACS,
    photos.VLCS,
    photos.NICO,
    photos.NICO_ANIMAL,
    photos.NICO_VEHICLE,
    digits.MNIST,
    digits.BSDS500,
    digits.MNIST_M,
    composed.PETS_PLACES,
    _EMBEDDED,
    own.FOLDER,
    own.LIST,
    composed.COMPOSED,
):
    SOURCES.add(_source.name, _source)

__all__ = ["SOURCES", "AnyImageList", "Download", "Source", "read_source"]
