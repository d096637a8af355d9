"""Small cut-outs and backgrounds on disk, for tests of everything that composes them."""

import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = {"cat": ("lynx", "puma"), "dog": ("husky", "pug")}
CONTEXTS = ("lake", "road", "snow")


def write_cutouts(root, each=12, below=8, subsets=False):
    """foregrounds/<class>/<kind>/<n>.png with alpha, and backgrounds/[train|test/]<context>/<n>.png, all random."""
    rng = np.random.default_rng(0)
    for label, kinds in CLASSES.items():
        for kind in kinds:
            for k in range(each):
                height, width = rng.integers(9, 31, 2)
                pixels = rng.integers(0, 256, (height, width, 4), np.uint8)
                pixels[..., 3] = np.where(rng.random((height, width)) < 0.3, pixels[..., 3], 255)
                _save(pixels, root / "foregrounds" / label / kind / f"{k:02d}.png")
    for subset in ("train", "test") if subsets else ("",):
        for context in CONTEXTS:
            for k in range(below):
                size = (20 + 3 * k, 33, 3)
                _save(rng.integers(0, 256, size, np.uint8), root / "backgrounds" / subset / context / f"{k}.png")
    return root


def pack(root, name):
    """Replace the folder `name` by an archive beside it, which contains it as its top folder."""
    with zipfile.ZipFile(root / f"{name}.zip", "w") as archive:
        for file in sorted((root / name).rglob("*.png")):
            archive.write(file, file.relative_to(root).as_posix())
            file.unlink()
    for folder in sorted((root / name).rglob("*"), reverse=True):
        folder.rmdir()
    (root / name).rmdir()


def _save(pixels: np.ndarray, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
