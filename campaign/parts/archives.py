"""Zip archives: damaged, encrypted, nested, with paths outside, links, twins, and members that unpack to gigabytes."""

from __future__ import annotations

import stat
import struct
import zipfile
from io import BytesIO
from pathlib import Path
from random import Random

from campaign.odd import garble
from campaign.parts.images import draw_image
from campaign.trial import Ending, Trial
from campaign.workshop import CLASSES, DOMAINS

EVIL = (
    "../out.png",
    "/tmp/out.png",
    "a/../../out.png",
    "C:\\out.png",
    "..\\out.png",
    "east/cat/\x01.png",
    "east//x.png",
)


def make(rng: Random, workshop: Path, folder: Path) -> Trial:
    data = BytesIO()
    with zipfile.ZipFile(data, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        top = rng.choice(("", "", "top/", "[/b]/"))
        for domain in DOMAINS:
            for label in CLASSES:
                for number in range(3):
                    archive.writestr(f"{top}{domain}/{label}/{number}.png", draw_image(rng, ".png"))
        for _ in range(rng.choice((0, 0, 1, 2))):
            _add_odd(rng, archive, top)
    written = data.getvalue()
    (folder / "photos.zip").write_bytes(garble(rng, written) if rng.random() < 0.4 else written)
    if rng.random() < 0.1:
        write_sparse(rng, folder / "photos.zip")
    words = rng.choice(
        (
            ["data", "split", "folder", "classic", "--root", "photos.zip", "--target", "west", "--out", "split.tsv"],
            ["data", "prepare", "folder", "--root", "photos.zip", "--store", "store", "--size", "8"],
            ["diagnose", "photos.zip", "--output", "page.html"],
        )
    )
    return Trial(words=words, check=_check_inside)


def write_sparse(rng: Random, path: Path) -> None:
    """An archive with a stored member of gigabytes, which take no place on disk, beside good ones."""
    name, size = b"east/cat/sparse.png", rng.choice((1 << 29, 3 << 30))
    sizes = struct.pack("<IIIHH", rng.randrange(1 << 32), size, size, len(name), 0)
    stored = struct.pack("<HHHHH", 20, 0, 0, 0, 0x21)  # version, flags, method, time, date
    with path.open("wb") as file:
        file.write(b"PK\3\4" + stored + sizes + name)
        file.seek(size, 1)
        start = file.tell()
        central = b"PK\1\2" + struct.pack("<H", 20) + stored + sizes + bytes(10) + struct.pack("<I", 0) + name
        file.write(central + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), start, 0))
    with zipfile.ZipFile(path, "a") as archive:
        for domain in DOMAINS:
            for label in CLASSES:
                for number in range(3):
                    archive.writestr(f"{domain}/{label}/{number}.png", draw_image(rng, ".png"))


def _add_odd(rng: Random, archive: zipfile.ZipFile, top: str) -> None:
    roll = rng.random()
    if roll < 0.35:
        archive.writestr(rng.choice(EVIL), draw_image(rng, ".png"))
    elif roll < 0.5:
        link = zipfile.ZipInfo(f"{top}east/cat/link.png")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    elif roll < 0.65:
        bomb = zipfile.ZipInfo(f"{top}east/cat/bomb.png")
        bomb.compress_type = zipfile.ZIP_DEFLATED
        with archive.open(bomb, "w") as member:
            for _ in range(300):
                member.write(bytes(1 << 20))
    elif roll < 0.8:
        archive.writestr(f"{top}EAST/cat/0.png", draw_image(rng, ".png"))
    else:
        archive.writestr(f"{top}east/cat/" + "n" * 300 + ".png", draw_image(rng, ".png"))


def _check_inside(ending: Ending) -> str:
    """Nothing is ever unpacked, least of all outside."""
    outside = [path for path in (ending.folder.parent / "out.png", Path("/tmp/out.png")) if path.exists()]
    return f"unpacked {outside[0]}" if outside else ""
