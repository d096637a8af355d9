"""MNIST-M, generated: MNIST's digits over crops of BSDS500's 200 training images."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from stablenet.data.sources import bsds500, mnist
from stablenet.data.sources.base import Source
from stablenet.data.table import ComposedTable


def read(root: Path) -> ComposedTable:
    """root holds both MNIST and BSDS500; one domain per background image."""
    images = bsds500.read(root)
    return ComposedTable(
        name="mnist-m",
        classes=mnist.CLASSES,
        domains=images.domains,
        rows=mnist.read_digit_rows(root),
        read_digits=partial(mnist.read_digits, root),
        read_backgrounds=partial(bsds500.read_backgrounds, images),
    )


SOURCE = Source(
    name="mnist-m",
    title="MNIST-M: digits over natural images in 200 domains, generated on the fly",
    origin="Ganin and Lempitsky, Unsupervised Domain Adaptation by Backpropagation, ICML 2015",
    licence="those of MNIST and BSDS500",
    layouts=("one folder that holds MNIST and BSDS500, each in a layout of its own",),
    read=read,
    counts={"train": 60_000, "test": 10_000},
    downloads=mnist.SOURCE.downloads + bsds500.SOURCE.downloads,
    by_hand="fetch MNIST and BSDS500 into one folder",
)
