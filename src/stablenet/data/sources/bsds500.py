"""BSDS500's training images as backgrounds: every image is a domain of its own."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from stablenet.data.decode import decode
from stablenet.data.sources.base import Download, Source
from stablenet.data.sources.tree import IMAGE_SUFFIXES, find_tree
from stablenet.data.table import ImageTable, make_image_table
from stablenet.errors import UserError

COUNT = 200
_LAYOUTS = (
    "BSDS500/data/images/train/<image>, as the authors' archive has it",
    "a folder of the 200 images whose name begins with bsds500",
    "a zip archive of either",
)


def read(root: Path) -> ImageTable:
    """200 images, one class, 200 domains named by the image's number."""
    tree = find_tree(root, "bsds500", _holds_images, _LAYOUTS[0])
    train = [file for file in tree.images if "/" not in file or file.startswith("train/")]
    if len(train) != COUNT:
        raise UserError(f"{tree.root} holds {len(train)} training images of BSDS500 where {COUNT} are published")
    names = sorted(PurePosixPath(file).stem for file in train)
    records: list[dict[str, object]] = [
        {
            "id": PurePosixPath(file).stem,
            "path": tree.prefix + file,
            "label": 0,
            "domain": names.index(PurePosixPath(file).stem),
        }
        for file in train
    ]
    return make_image_table("bsds500", tree.root, ("background",), names, records)


def read_backgrounds(table: ImageTable) -> list[NDArray[np.uint8]]:
    """Every image as (H, W, 3) uint8, in the order of the domains; damaged ones are all named at once."""
    backgrounds, bad = [], []
    for path in table.rows.sort_values("domain")["path"]:
        try:
            backgrounds.append(decode(table.open_bytes(path)))
        except Exception as error:  # decoders raise whatever they like on broken bytes
            bad.append(f"{path} ({error})")
    if bad:
        raise UserError(f"{len(bad)} backgrounds in {table.root} cannot be decoded: {', '.join(bad)}; get them again")
    return backgrounds


def _holds_images(folder: str, names: set[str]) -> bool:
    """The authors' folder images/ has train, val and test; a plain folder has the images themselves."""
    plain = folder.startswith("bsds") and any(name.endswith(IMAGE_SUFFIXES) for name in names)
    return plain or (folder == "images" and "train" in names)


SOURCE = Source(
    name="bsds500",
    title="BSDS500: 200 natural images, the backgrounds of MNIST-M",
    origin="Arbelaez et al., Contour Detection and Hierarchical Image Segmentation, TPAMI 2011",
    licence="not stated by its authors; for non-commercial research and education",
    layouts=_LAYOUTS,
    read=read,
    counts={"train": COUNT},
    downloads=(Download(url="https://github.com/BIDS/BSDS500/archive/refs/heads/master.zip", file="bsds500.zip"),),
    by_hand="fetch BSDS500 from the Berkeley Computer Vision group or its GitHub mirror BIDS/BSDS500",
)
