"""The README's picture, a diagnosis of photographs: `python docs/make_screenshot.py PETS-ARCHIVE`.

Cats and dogs of the Oxford-IIIT Pet set (CC BY-SA 4.0), cut out along their trimaps, before crops of scikit-learn's two
photographs, a temple and a flower: of each class 92 % before the same one. PETS-ARCHIVE: as `stablenet data list
pets-places` describes it. Needs Chromium and the extra `dev`.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright
from sklearn.datasets import load_sample_image

from stablenet.diagnose.diagnoses import ImageChoices, diagnose_images
from stablenet.diagnose.diagnosis_page import Asked, write_page
from stablenet.diagnose.subject import open_place

SIDE, COUNT, SHARE = 160, 220, 0.92
OWN = {"cat": "flower.jpg", "dog": "china.jpg"}
NAMES = {"flower.jpg": "flowers", "china.jpg": "temple"}


def write_photographs(archive: Path, folder: Path) -> None:
    """context/class/image, COUNT of each class."""
    draw = np.random.default_rng(0)
    with zipfile.ZipFile(archive) as pets:
        for label, own in OWN.items():
            names = sorted(n for n in pets.namelist() if f"/{label}/" in f"/{n}" and n.endswith(".webp"))
            for number, name in enumerate(draw.choice(names, COUNT, replace=False)):
                other = next(place for place in NAMES if place != own)
                place = own if draw.random() < SHARE else other
                ground = cut_ground(load_sample_image(place), draw)
                with Image.open(io.BytesIO(pets.read(name))) as pet:
                    paste(ground, pet.convert("RGBA"), draw)
                file = folder / NAMES[place] / label / f"{number}.jpg"
                file.parent.mkdir(parents=True, exist_ok=True)
                ground.save(file, quality=92)


def cut_ground(photograph: np.ndarray, draw: np.random.Generator) -> Image.Image:
    side = int(draw.integers(200, 400))
    top, left = draw.integers(0, photograph.shape[0] - side), draw.integers(0, photograph.shape[1] - side)
    return Image.fromarray(photograph[top : top + side, left : left + side]).resize((SIDE, SIDE))


def paste(ground: Image.Image, pet: Image.Image, draw: np.random.Generator) -> None:
    scale = draw.uniform(0.55, 0.8) * SIDE / max(pet.size)
    pet = pet.resize((max(1, round(pet.width * scale)), max(1, round(pet.height * scale))))
    ground.paste(pet, (int(draw.integers(0, SIDE - pet.width + 1)), SIDE - pet.height), pet)


def take_screenshot(page: Path, out: Path) -> None:
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1300, "height": 900})
        opened.goto(page.as_uri())
        opened.screenshot(path=str(out))
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", type=Path)
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "pictures" / "diagnosis.png")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder, page = Path(place) / "my-pictures", Path(place) / "diagnosis.html"
        write_photographs(given.archive, folder)
        found = diagnose_images(open_place(folder), ImageChoices())
        asked = Asked(kind="own images", data="my-pictures")
        write_page(found, page, "stablenet diagnose my-pictures", 0.0, asked)
        take_screenshot(page, given.to)


if __name__ == "__main__":
    main()
