"""Contact sheets: the right images in the right frames."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageColor

from stablenet.data.contact import SOURCE_COLOUR, TARGET_COLOUR, write_contact_sheet
from stablenet.data.image_list import make_image_list
from stablenet.data.manifest import Manifest
from stablenet.data.sources.digits import read_embedded
from stablenet.data.splits import split_images
from stablenet.errors import UserError

SHADES = {("ink", "cat"): 60, ("ink", "dog"): 100, ("oil", "cat"): 140, ("oil", "dog"): 180}


@pytest.fixture
def table(tmp_path):
    root = tmp_path / "images"
    root.mkdir()
    records = []
    for (domain, klass), shade in SHADES.items():
        for k in range(5):
            name = f"{domain}-{klass}-{k}.png"
            Image.fromarray(np.full((9, 9, 3), shade, np.uint8)).save(root / name)
            place = {"label": ["cat", "dog"].index(klass), "domain": ["ink", "oil"].index(domain)}
            records.append({"id": name, "path": name, **place})
    return make_image_list("shades", root, ("cat", "dog"), ("ink", "oil"), records)


@pytest.fixture
def manifest(table):
    """Every image of ink is source; of oil, dogs are target and cats both."""
    rows = table.rows[["id", "label", "domain"]].copy()
    rows["part"] = np.where(rows["domain"] == 0, "train", "test")
    rows.loc[rows["id"].isin(["oil-cat-0.png", "oil-cat-1.png"]), "part"] = "validation"
    return Manifest("shades", "by hand", {}, 0, table.classes, table.domains, rows)


def _find_frames(sheet, colour, shade):
    """Thumbnails of a shade that lie in a frame of a colour, counted by their left edges."""
    pixels = np.asarray(sheet).astype(int)
    frame = (pixels == ImageColor.getrgb(colour)).all(-1)
    inside = (pixels == shade).all(-1)
    starts = frame[:, :-1] & inside[:, 1:]
    return len(set(np.flatnonzero(starts.any(0)).tolist()))


def test_cells_hold_their_images_framed_by_part(table, manifest, tmp_path):
    write_contact_sheet(manifest, table, tmp_path / "new" / "sheet.png")
    sheet = Image.open(tmp_path / "new" / "sheet.png")
    found = {
        key: (_find_frames(sheet, SOURCE_COLOUR, shade), _find_frames(sheet, TARGET_COLOUR, shade))
        for key, shade in SHADES.items()
    }
    assert found == {("ink", "cat"): (3, 0), ("ink", "dog"): (3, 0), ("oil", "cat"): (2, 1), ("oil", "dog"): (0, 3)}


def test_a_broken_image_does_not_stop_the_sheet(table, manifest, tmp_path):
    (table.root / "ink-cat-0.png").write_bytes(b"broken")
    write_contact_sheet(manifest, table, tmp_path / "sheet.png")
    assert _find_frames(Image.open(tmp_path / "sheet.png"), SOURCE_COLOUR, SHADES["ink", "cat"]) == 2


def test_composed_sets_show_each_class_in_training_and_test(tmp_path):
    table = read_embedded()
    manifest = split_images(table, "adversarial", train_size=400, test_size=200)
    write_contact_sheet(manifest, table, tmp_path / "sheet.png")
    pixels = np.asarray(Image.open(tmp_path / "sheet.png")).astype(int)
    for colour in (SOURCE_COLOUR, TARGET_COLOUR):
        frame = (pixels == ImageColor.getrgb(colour)).all(-1)
        assert (frame.sum(1) > 8 * 60).sum() >= 10 * 6  # ten rows of eight frames, three lines above and below


def test_a_foreign_source_or_an_impossible_place_is_refused(table, manifest, tmp_path):
    with pytest.raises(UserError, match="does not belong to the source embedded"):
        write_contact_sheet(manifest, read_embedded(), tmp_path / "sheet.png")
    strange = manifest.rows.replace({"id": {"ink-cat-0.png": "gone.png"}})
    other = Manifest("shades", "by hand", {}, 0, table.classes, table.domains, pd.DataFrame(strange))
    with pytest.raises(UserError, match=r"has no image gone\.png"):
        write_contact_sheet(other, table, tmp_path / "sheet.png")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the contact sheet"):
        write_contact_sheet(manifest, table, tmp_path / "file" / "sheet.png")
