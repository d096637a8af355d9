"""Real handwritten digits on procedural textures: the test bed that ships with the package's dependencies.

Digits: scikit-learn's copy of the UCI optical digits (1,797 images of 8 × 8 pixels, CC BY 4.0), enlarged to
the 28 pixels of MNIST. Backgrounds: drawn by `stablenet.data.textures`. Blended exactly as MNIST-M.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

from stablenet.data.table import ComposedTable
from stablenet.data.textures import NUM_TEXTURES, draw_textures, texture_names

SIDE = 28
NUM_TEST = 500  # the last 500 digits, mostly from other writers than the first 1,297


def embedded_table() -> ComposedTable:
    """The embedded source as a table: nothing is read from disk but scikit-learn's own copy of the digits."""
    labels = _load_digits()[1]
    first_test = len(labels) - NUM_TEST
    rows = pd.DataFrame(
        {
            "id": [f"digits/{number:04d}" for number in range(len(labels))],
            "label": labels,
            "subset": np.where(np.arange(len(labels)) < first_test, "train", "test"),
        }
    )
    return ComposedTable(
        name="embedded",
        classes=tuple(str(digit) for digit in range(10)),
        domains=texture_names(NUM_TEXTURES),
        rows=rows,
        read_digits=read_digits,
        read_backgrounds=draw_textures,
    )


def read_digits() -> NDArray[np.uint8]:
    """The digits as (1797, 28, 28) uint8, ink 255 on paper 0, enlarged with a bicubic filter."""
    small = np.round(_load_digits()[0] * (255 / 16)).astype(np.uint8)
    enlarged = [np.asarray(Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BICUBIC)) for image in small]
    return np.stack(enlarged)


def _load_digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Images (1797, 8, 8) with values 0..16 and labels (1797,)."""
    from sklearn.datasets import load_digits  # costs a second: only who reads the digits pays

    bunch = load_digits()
    return bunch.images, bunch.target.astype(np.int64)
