"""Image files of every form, and of none: predicted, prepared and shown."""

from __future__ import annotations

import shutil
import struct
import zlib
from io import BytesIO
from pathlib import Path
from random import Random

from PIL import Image

from campaign.odd import garble
from campaign.trial import Trial

FORMS = {".png": "PNG", ".jpg": "JPEG", ".gif": "GIF", ".bmp": "BMP", ".webp": "WEBP", ".tif": "TIFF"}
MODES = {
    ".png": ("RGB", "RGBA", "L", "LA", "P", "1", "I;16", "I"),
    ".jpg": ("RGB", "L", "CMYK", "YCbCr"),
    ".gif": ("P", "L", "RGB"),
    ".bmp": ("RGB", "L", "1", "P"),
    ".webp": ("RGB", "RGBA"),
    ".tif": ("RGB", "CMYK", "F", "I;16", "L", "LAB", "1", "I"),
}
NAMES = ("a{}", "[b]{}", "é ü{}", "-x{}", "a\tb{}", "a\nb{}", "x" * 240 + "{}", "\udcff{}", "a,b{}", '"q"{}', "..{}")

_HUGE_SHARE = 0.05


def make(rng: Random, workshop: Path, folder: Path) -> Trial:
    shutil.copytree(workshop / "photos", folder / "photos")
    for _ in range(rng.choice((1, 1, 3))):
        suffix = rng.choice(sorted(FORMS))
        data = draw_image(rng, suffix)
        if rng.random() < 0.4:
            data = garble(rng, data)
        wrong = rng.choice(sorted(FORMS)) if rng.random() < 0.2 else suffix
        path = folder / "photos" / "east" / "cat" / rng.choice(NAMES).format(wrong)
        path.write_bytes(data)
    run = str(workshop / "runs" / "plain")
    words = rng.choice(
        (
            ["predict", run, "photos", "--output", "predicted.csv"],
            ["predict", run, "photos", "--skip-bad"],
            ["data", "prepare", "folder", "--root", "photos", "--store", "store", "--size", "16"],
            ["data", "prepare", "folder", "--root", "photos", "--store", "store", "--skip-bad"],
            ["diagnose", "photos", "--output", "page.html"],
            ["saliency", run, "--images", "photos/east/cat", "--samples", "2", "--output", "page.html"],
            ["data", "split", "folder", "classic", "--root", "photos", "--target", "west", "--out", "split.tsv"],
        )
    )
    return Trial(words=words)


def draw_huge(rng: Random) -> bytes:
    """A PNG of few bytes and very many pixels: in truth, or by its header alone."""
    side = rng.choice((3000, 9000, 14_000, 30_000))
    file = BytesIO()
    Image.new("1", (side, rng.choice((side, 10)))).save(file, "PNG")
    data = bytearray(file.getvalue())
    if rng.random() < 0.5:
        data[16:24] = struct.pack(">II", rng.choice((0, 10**5, 2**31 - 1, 2**32 - 1)), rng.choice((1, 10**5, 2**31)))
        data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


def draw_image(rng: Random, suffix: str) -> bytes:
    """An image of any mode, with or without frames and orientation, of one pixel or quite long."""
    if suffix == ".png" and rng.random() < _HUGE_SHARE:
        return draw_huge(rng)
    size = rng.choice(((16, 16), (1, 1), (2, 300), (1, 4000), (33, 7), (900, 900)))
    mode = rng.choice(MODES[suffix])
    image = Image.new("RGB", size, (rng.randrange(256), 10, 200))
    converted = Image.new(mode, size) if mode in ("I;16", "LAB", "F", "I") else image.convert(mode)
    options: dict[str, object] = {}
    if rng.random() < 0.3:
        exif = Image.Exif()
        exif[0x0112] = rng.choice((0, 3, 6, 8, 99))
        options["exif"] = exif if rng.random() < 0.7 else garble(rng, exif.tobytes())[:60_000]
    if suffix in (".gif", ".webp", ".tif", ".png") and rng.random() < 0.3:
        frames = rng.choice((1, 3, 3, 200 if size[0] * size[1] < 1000 else 10))
        options |= {"save_all": True, "append_images": [converted.copy() for _ in range(frames)]}
    if mode in ("P", "L") and suffix in (".gif", ".png") and rng.random() < 0.4:
        options["transparency"] = 0
    file = BytesIO()
    try:
        converted.save(file, FORMS[suffix], **options)
    except (OSError, ValueError, TypeError, KeyError, SyntaxError):  # a form that cannot hold the mode, or the EXIF
        file = BytesIO()
        image.save(file, FORMS[suffix])
    return file.getvalue()
