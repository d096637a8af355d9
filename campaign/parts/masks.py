"""Masks of one's own images: of every form, size and damage, missing, and of other names."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

from campaign.odd import garble
from campaign.parts.images import FORMS, draw_huge, draw_image
from campaign.trial import Trial

COUNT = 3


def make(rng: Random, workshop: Path, folder: Path) -> Trial:
    (folder / "images").mkdir()
    (folder / "masks").mkdir()
    for number, source in enumerate(sorted((workshop / "photos" / "east" / "cat").iterdir())[:COUNT]):
        name = rng.choice((f"{number}", f"{number}", f"[b]{number}", f"é {number}", f"{number}.a"))
        shutil.copy(source, folder / "images" / f"{name}.png")
        _draw_mask(rng, folder / "masks" / f"{name}.png")
    place = rng.choice(("masks",) * 8 + ("images", "nowhere", "images/0.png", "", "/dev/null"))
    words = ["saliency", str(workshop / "runs" / "plain"), "--images", "images", "--masks", place, "--samples", "2"]
    return Trial(words=[*words, "--output", "page.html"])


def _draw_mask(rng: Random, path: Path) -> None:
    """Most often an image of some form; else nothing, a folder, a link, or bytes that are none."""
    roll = rng.random()
    if roll < 0.06:
        return
    if roll < 0.1:
        path.mkdir()
    elif roll < 0.15:
        path.symlink_to(rng.choice(("/dev/zero", "/dev/null", path.name, "nowhere", "/etc/passwd", "../images/0.png")))
    elif roll < 0.25:
        path.write_bytes(draw_huge(rng))
    else:
        data = draw_image(rng, rng.choice(sorted(FORMS)))
        path.write_bytes(garble(rng, data) if rng.random() < 0.6 else data)
