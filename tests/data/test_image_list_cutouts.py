"""Cut-outs over backgrounds: pixels against a slow loop, boxes by hand, masks, the store, and what is refused."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.cutouts import CONTEXTS, write_cutouts

from stablenet.data.check import check_manifest
from stablenet.data.compose import LIFT, PLACES, Box, Placement, fit_square, mask_cutout, paste_cutout, place_box
from stablenet.data.contact import write_contact_sheet
from stablenet.data.decode import Task, decode, decode_cutout, read_task, run_tasks, write_task
from stablenet.data.image_list import find_masks
from stablenet.data.loader import read_part
from stablenet.data.manifest import Manifest
from stablenet.data.prepare import prepare_part
from stablenet.data.sources import read_source
from stablenet.data.splits import split_images
from stablenet.errors import UserError


@pytest.fixture
def table(tmp_path):
    return read_source("composed", write_cutouts(tmp_path / "made"))


@pytest.fixture
def manifest(table):
    return split_images(table, "correlated", 1, ratio=0.8, side=24)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STABLENET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _paste_slowly(cutout, background, placement, side):
    """Pixel by pixel, in plain Python numbers; resizing alone is left to Pillow."""
    height, width = cutout.shape[:2]
    high = int(side * placement.scale / 1000)
    wide = int(high * width / height + 0.5)
    if wide > side:
        wide, high = side, int(side * height / width + 0.5)
    room = min(side - high, int(side * 0.06))
    left = int(placement.u / 65536 * (side - wide + 1))
    top = side - high - room + int(placement.v / 65536 * (room + 1))
    edge = min(background.shape[:2])
    corner = [(length - edge) // 2 for length in background.shape[:2]]
    square = Image.fromarray(background).crop((corner[1], corner[0], corner[1] + edge, corner[0] + edge))
    below = np.asarray(square.resize((side, side), Image.Resampling.BILINEAR))
    small = np.asarray(Image.fromarray(cutout).resize((wide, high), Image.Resampling.BILINEAR))
    image, mask = np.zeros((side, side, 3), np.uint8), np.zeros((side, side), bool)
    for i in range(side):
        for j in range(side):
            inside = top <= i < top + high and left <= j < left + wide
            alpha = int(small[i - top, j - left, 3]) if inside else 0
            mask[i, j] = alpha > 127.5
            for channel in range(3):
                over = int(small[i - top, j - left, channel]) if inside else 0
                exact = alpha * over + (255 - alpha) * int(below[i, j, channel])
                image[i, j, channel] = int(exact / 255 + 0.5)
    return image, mask


@pytest.mark.parametrize("seed", range(6))
def test_pasting_agrees_with_a_slow_loop(seed):
    rng = np.random.default_rng(seed)
    cutout = rng.integers(0, 256, (*rng.integers(3, 40, 2), 4), np.uint8)
    background = rng.integers(0, 256, (*rng.integers(20, 50, 2), 3), np.uint8)
    placement = Placement("", *rng.integers(0, PLACES, 2).tolist(), int(rng.integers(400, 1001)))
    side = int(rng.integers(16, 33))
    image, mask = _paste_slowly(cutout, background, placement, side)
    np.testing.assert_array_equal(paste_cutout(cutout, background, placement, side), image)
    np.testing.assert_array_equal(mask_cutout(cutout, placement, side), mask)


def test_boxes_by_hand():
    last = PLACES - 1
    assert place_box((50, 100), Placement("", 0, last, 400), 100) == Box(60, 0, 40, 80)
    assert place_box((50, 100), Placement("", last, last, 400), 100) == Box(60, 20, 40, 80)
    assert place_box((50, 100), Placement("", 0, 0, 400), 100) == Box(60 - 100 * LIFT // 1000, 0, 40, 80)
    assert place_box((50, 100), Placement("", 0, last, 800), 100) == Box(50, 0, 50, 100), "shrunk to the width"
    assert place_box((10, 10), Placement("", 0, 0, 1000), 100) == Box(0, 0, 100, 100), "no room above"


def test_every_box_is_inside_and_near_the_lower_edge():
    rng = np.random.default_rng(0)
    for _ in range(500):
        side, (u, v) = int(rng.integers(8, 200)), rng.integers(0, PLACES, 2).tolist()
        box = place_box(
            tuple(rng.integers(1, 300, 2).tolist()), Placement("", u, v, int(rng.integers(300, 1001))), side
        )
        assert 0 <= box.left <= side - box.width
        assert box.top >= 0
        assert 0 <= side - box.top - box.height <= side * 0.06


def test_opaque_shows_the_cutout_and_transparent_the_background():
    rng = np.random.default_rng(0)
    background = rng.integers(0, 256, (20, 20, 3), np.uint8)
    cutout = rng.integers(0, 256, (12, 12, 4), np.uint8)
    place = Placement("", 9000, 0, 600)
    cutout[..., 3] = 0
    np.testing.assert_array_equal(paste_cutout(cutout, background, place, 20), background)
    assert not mask_cutout(cutout, place, 20).any()
    cutout[..., 3] = 255
    image, mask = paste_cutout(cutout, background, place, 20), mask_cutout(cutout, place, 20)
    np.testing.assert_array_equal(image[mask], cutout[..., :3].reshape(-1, 3))
    np.testing.assert_array_equal(image[~mask], background[~mask])
    assert mask.sum() == 144


def test_the_central_square_of_a_background():
    image = np.arange(5 * 9 * 3, dtype=np.uint8).reshape(5, 9, 3)
    np.testing.assert_array_equal(fit_square(image, 5), image[:, 2:7])
    np.testing.assert_array_equal(fit_square(image.transpose(1, 0, 2), 5), image.transpose(1, 0, 2)[2:7])


def test_a_cutout_is_trimmed_to_what_shows(tmp_path):
    pixels = np.zeros((10, 12, 4), np.uint8)
    pixels[2:5, 3:9] = (1, 2, 3, 4)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    assert decode_cutout((tmp_path / "x.png").read_bytes()).shape == (3, 6, 4)
    Image.fromarray(0 * pixels).save(tmp_path / "x.png")
    with pytest.raises(ValueError, match="transparent everywhere"):
        decode_cutout((tmp_path / "x.png").read_bytes())
    Image.fromarray(pixels[..., :3]).save(tmp_path / "x.png")
    with pytest.raises(ValueError, match="no alpha channel"):
        decode_cutout((tmp_path / "x.png").read_bytes())


def test_the_store_holds_what_the_manifest_says(table, manifest, tmp_path):
    manifest.save(tmp_path / "m.tsv")
    loaded = Manifest.load(tmp_path / "m.tsv")
    assert loaded.hash == manifest.hash
    root = table.foregrounds.root.parent
    for part in ("train", "validation", "test"):
        samples = read_part(prepare_part(table, loaded, part), loaded, part)
        rows = loaded.part(part)
        assert samples.y.tolist() == rows["label"].tolist()
        assert samples.domain.tolist() == rows["domain"].tolist()
        pixels = samples.pixels.read(samples.row).numpy()
        masks = find_masks(table, loaded, part)
        for k, row in enumerate(rows.itertuples()):
            cutout = decode_cutout((root / "foregrounds" / row.foreground).read_bytes())
            background = decode((root / "backgrounds" / row.background).read_bytes())
            image, mask = _paste_slowly(cutout, background, Placement("", row.u, row.v, row.scale), 24)
            np.testing.assert_array_equal(pixels[k], image)
            np.testing.assert_array_equal(masks[k], mask)


def test_a_part_is_composed_once_and_again_when_a_file_changes(table, manifest, cache):
    store = prepare_part(table, manifest, "test")
    before = store.pixels.clone()
    kept = (store.path / "pixels.bin").stat().st_mtime_ns
    assert (prepare_part(table, manifest, "test").path / "pixels.bin").stat().st_mtime_ns == kept
    assert [path.name for path in cache.glob("composed*")] == [store.path.name], "no other part was composed"
    file = table.backgrounds.root / manifest.part("test")["background"].iloc[0]
    Image.new("RGB", (40, 40), (255, 0, 0)).save(file)
    assert not torch.equal(prepare_part(table, manifest, "test").pixels, before)


def test_masks_of_some_samples_in_their_order(table, manifest):
    ids = manifest.part("train")["id"].tolist()
    masks = find_masks(table, manifest, "train")
    np.testing.assert_array_equal(find_masks(table, manifest, "train", [ids[4], ids[1]]), masks[[4, 1]])


def test_composing_one_by_one_gives_the_same(table, manifest):
    placed = table.place(manifest, manifest.part("validation"))
    np.testing.assert_array_equal(np.stack(list(placed.compose())), prepare_part(table, manifest, "validation").pixels)


def test_a_task_survives_its_way_to_another_process(tmp_path, table, manifest):
    placed = table.place(manifest, manifest.part("validation"))
    task = Task(placed.root, tuple(placed.rows["path"]), (24, 24), False, tmp_path / "p", 0, placed.backgrounds)
    task = dataclasses.replace(task, placements=placed.placements)
    assert read_task(write_task(task)) == task


def test_broken_files_are_listed(table, manifest):
    rows = manifest.part("test")
    (table.foregrounds.root / rows["foreground"].iloc[0]).write_bytes(b"broken")
    (table.backgrounds.root / rows["background"].iloc[1]).write_bytes(b"broken")
    with pytest.raises(UserError) as caught:
        prepare_part(table, manifest, "test")
    assert f"{rows['id'].iloc[0]}: not an image" in str(caught.value)
    assert f"its background {rows['background'].iloc[1]}: not an image" in str(caught.value)
    assert "or remove them and split again" in str(caught.value)


def test_a_manifest_of_another_source_is_named(table, manifest):
    foreign = dataclasses.replace(manifest, rows=manifest.rows.assign(foreground="cat/none.png"))
    with pytest.raises(UserError, match=r"composed has no image cat/none\.png"):
        prepare_part(table, foreign, "test")
    plain = dataclasses.replace(manifest, rows=manifest.rows[["id", "label", "domain", "part"]])
    with pytest.raises(UserError, match="has no cut-outs"):
        prepare_part(table, plain, "test")


def test_a_sheet_shows_classes_by_contexts(table, manifest, tmp_path):
    write_contact_sheet(manifest, table, tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert len(sheet.getcolors(1 << 20)) > 1000
    with pytest.raises(UserError, match="does not belong"):
        write_contact_sheet(manifest, table.foregrounds, tmp_path / "x.png")


def test_the_checks_find_what_is_broken(table, manifest):
    assert all(finding.holds for finding in check_manifest(manifest, table))

    def failing(**columns):
        broken = dataclasses.replace(manifest, rows=manifest.rows.assign(**columns))
        return {finding.name for finding in check_manifest(broken, table) if not finding.holds}

    assert "no foreground in both training and test" in failing(foreground=manifest.rows["foreground"].iloc[0])
    assert "no background in both training and test" in failing(background=manifest.rows["background"].iloc[0])
    assert {"share of the own context in training: 0.8", "test groups of equal size"} <= failing(domain=0)
    assert "the source has these foregrounds and backgrounds" in failing(label=1 - manifest.rows["label"])


def test_tasks_run(tmp_path, table, manifest):
    placed = table.place(manifest, manifest.part("validation"))
    file = tmp_path / "pixels"
    file.touch()
    made = Task(
        placed.root, tuple(placed.rows["path"]), (24, 24), False, file, 0, placed.backgrounds, placed.placements
    )
    (records,) = run_tasks([made], 1)
    assert not any(record.reason for record in records)
    assert file.stat().st_size == len(records) * 24 * 24 * 3
    assert len(CONTEXTS) == len(table.domains)
