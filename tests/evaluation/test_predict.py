"""Predictions of parts and of named files, against one image at a time; their figures and tables, by hand."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from stablenet.data.manifest import Manifest
from stablenet.errors import UserError
from stablenet.evaluation.predict import (
    Predictions,
    check_images,
    find_broken,
    find_device,
    gather_images,
    measure,
    predict_images,
    predict_part,
    read_pixels,
    save_table,
    tabulate,
)
from tests.made_run import random_network

CLASSES, DOMAINS = ("cat", "dog"), ("art", "photo", "sketch")

#          domain  class  predicted
SAMPLES = [
    ("photo", "cat", "cat"),
    ("photo", "cat", "dog"),
    ("photo", "cat", "cat"),
    ("photo", "dog", "dog"),
    ("art", "cat", "dog"),
    ("art", "cat", "dog"),
    ("art", "dog", "dog"),
    ("art", "dog", "cat"),
    ("art", "dog", "dog"),
    ("art", "dog", "dog"),
]


@pytest.fixture
def predictions():
    y = torch.tensor([CLASSES.index(label) for _, label, _ in SAMPLES])
    domain = torch.tensor([DOMAINS.index(name) for name, _, _ in SAMPLES])
    logits = torch.tensor([[2.0, 0.0] if guess == "cat" else [0.0, 1.0] for _, _, guess in SAMPLES])
    return Predictions([f"image{k}" for k in range(len(SAMPLES))], logits, y, domain)


def test_figures_by_hand(predictions):
    figures = measure(predictions, DOMAINS, CLASSES)
    assert figures["count"] == 10
    assert figures["accuracy"] == pytest.approx(6 / 10)
    assert figures["per_domain"] == pytest.approx({"photo": 3 / 4, "art": 3 / 6})  # none of sketch
    assert figures["mean_domain_accuracy"] == pytest.approx((3 / 4 + 3 / 6) / 2)
    assert figures["per_class"] == pytest.approx({"cat": 2 / 5, "dog": 4 / 5})
    assert figures["worst_group_accuracy"] == 0
    worst = figures["worst_group"]
    assert (worst["domain"], worst["class"], worst["accuracy"], worst["count"]) == ("art", "cat", 0.0, 2)
    assert worst["small"], "all groups are"
    # Confidence of a guessed cat is 1/(1+e⁻²) (three, two right), of a dog 1/(1+e⁻¹) (seven, four right).
    sure, unsure = 1 / (1 + torch.e**-2), 1 / (1 + torch.e**-1)
    expected = (abs(2 - 3 * sure) + abs(4 - 7 * unsure)) / 10
    assert figures["calibration_error"] == pytest.approx(expected, abs=1e-6)


def test_the_largest_of_equally_bad_groups_is_named():
    wrong = Predictions(list("abc"), torch.tensor([[1.0, 0.0]] * 3), torch.ones(3).long(), torch.tensor([0, 1, 1]))
    worst = measure(wrong, DOMAINS, CLASSES)["worst_group"]
    assert (worst["domain"], worst["class"], worst["count"]) == ("photo", "dog", 2)


def test_a_table_holds_the_same_and_comes_back_from_files(predictions, tmp_path):
    rows = pd.DataFrame({"id": ["x"], "label": [0], "domain": [0], "part": ["test"]})
    manifest = Manifest("pets", "classic", {}, 0, CLASSES, DOMAINS, rows)
    table = tabulate(predictions, manifest)
    assert [*zip(table["domain"], table["class"], table["predicted"], strict=True)] == SAMPLES
    assert table["right"].mean() == pytest.approx(0.6)
    assert (table[["p_cat", "p_dog"]].sum(axis=1) - 1).abs().max() < 1e-6
    assert (table["probability"] == table[["p_cat", "p_dog"]].max(axis=1)).all()
    for name, read in (("t.csv", pd.read_csv), ("t.parquet", pd.read_parquet)):
        save_table(table, tmp_path / "new" / name)
        assert list(read(tmp_path / "new" / name)["predicted"]) == list(table["predicted"])


def test_other_formats_and_places_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"written as \.csv or \.parquet, got 'a\.xlsx'"):
        save_table(pd.DataFrame(), tmp_path / "a.xlsx")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"):
        save_table(pd.DataFrame(), tmp_path / "file" / "a.csv")


@pytest.fixture(scope="module")
def network():
    return random_network(0)


def test_a_part_in_batches_equals_one_sample_at_a_time(run, network):
    samples = run.open_part("test")
    told = []
    predictions = predict_part(
        network, samples, run.transform, batch_size=16, progress=lambda done, total: told.append((done, total))
    )
    for k in (0, 15, 16, 59):
        pixels = samples.pixels.read(samples.row[k : k + 1])
        normal = (pixels.permute(0, 3, 1, 2) / 255 - 0.5) / 0.5
        with torch.no_grad():
            torch.testing.assert_close(predictions.logits[k], network(normal)[0], atol=1e-5, rtol=1e-4)
    rows = run.manifest.part("test")
    assert list(predictions.ids) == rows["id"].tolist()
    assert predictions.y.tolist() == rows["label"].tolist()
    assert told == [(16, 60), (32, 60), (48, 60), (60, 60)]


def test_files_give_what_the_part_gives(run, network, tmp_path):
    samples = run.open_part("test")
    pixels = samples.pixels.read(samples.row[:5])
    paths = [tmp_path / f"{k}.png" for k in range(5)]
    for path, image in zip(paths, pixels.numpy(), strict=True):
        Image.fromarray(image).save(path)
    logits = predict_images(network, paths, run.transform, stored_side=None, batch_size=2)
    expected = predict_part(network, samples, run.transform).logits[:5]
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)


def test_images_of_all_sizes_and_kinds_are_taken(run, network, tmp_path):
    Image.new("RGB", (50, 20), (200, 10, 10)).save(tmp_path / "wide.jpg")
    Image.new("L", (9, 9), 77).save(tmp_path / "grey.png")
    Image.new("RGBA", (28, 28)).save(tmp_path / "clear.png")
    paths = sorted(tmp_path.glob("*.*g"))
    assert predict_images(network, paths, run.transform, stored_side=None).shape == (3, 10)
    assert read_pixels(tmp_path / "wide.jpg", 32).shape == (32, 32, 3)
    assert read_pixels(tmp_path / "wide.jpg", None).shape == (20, 50, 3)


def test_broken_images_are_named(run, network, tmp_path):
    good, broken, cut = (tmp_path / name for name in ("good.png", "broken.png", "cut.png"))
    noise = np.random.default_rng(0).integers(0, 256, (28, 28, 3), np.uint8)
    Image.fromarray(noise).save(good)
    broken.write_bytes(b"no image")
    cut.write_bytes(good.read_bytes()[:500])
    for path in (broken, cut):
        with pytest.raises(UserError, match=f"cannot read the image .*{path.name}"):
            predict_images(network, [good, path], run.transform, stored_side=None)
    assert list(find_broken([good, broken, cut], None)) == [broken, cut]


def test_devices():
    assert find_device("cpu") == torch.device("cpu")
    with pytest.raises(UserError, match="choose auto"):
        find_device("tpu")


def test_images_pass_through_the_stored_size(run, network, tmp_path):
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "large.png")
    small = Image.fromarray(noise).resize((8, 8), Image.Resampling.BILINEAR)
    small.save(tmp_path / "small.png")
    stored = predict_images(network, [tmp_path / "large.png"], run.transform, stored_side=8)
    expected = predict_images(network, [tmp_path / "small.png"], run.transform, stored_side=None)
    torch.testing.assert_close(stored, expected)
    direct = predict_images(network, [tmp_path / "large.png"], run.transform, stored_side=None)
    assert not torch.allclose(stored, direct)


@pytest.fixture
def folder(tmp_path):
    for name in ("b.png", "a.JPG", "deep/er/c.webp", "notes.txt", "deep/.hidden"):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).touch()
    return tmp_path / "images"


def names(table, folder):
    return [Path(path).relative_to(folder).as_posix() for path in table["path"]]


def test_a_folder_gives_its_images_sorted_and_nothing_else(folder):
    assert names(gather_images([folder]), folder) == ["a.JPG", "b.png", "deep/er/c.webp"]


def test_files_keep_the_order_they_are_given_in(folder):
    assert names(gather_images([folder / "b.png", folder / "a.JPG"]), folder) == ["b.png", "a.JPG"]


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_a_table_starts_at_its_folder_and_keeps_its_columns(folder, ending):
    rows = pd.DataFrame({"path": ["deep/er/c.webp", "b.png"], "patient": ["007", "008"]})
    table = folder / f"list.{ending}"
    if ending == "parquet":
        rows.to_parquet(table)
    else:
        rows.to_csv(table, index=False, sep="\t" if ending == "tsv" else ",")
    gathered = gather_images([table])
    assert names(gathered, folder) == ["deep/er/c.webp", "b.png"]
    assert list(gathered["patient"]) == ["007", "008"]


def test_a_list_may_lie_apart_from_its_images_and_name_them_absolutely(folder, tmp_path):
    apart = tmp_path / "apart.csv"
    pd.DataFrame({"patient": ["007", "008"], "file_name": ["deep/er/c.webp", "b.png"]}).to_csv(apart, index=False)
    gathered = gather_images([apart], folder)
    assert names(gathered, folder) == ["deep/er/c.webp", "b.png"]
    assert list(gathered.columns) == ["patient", "path"]
    pd.DataFrame({"path": [str(folder / "b.png")]}).to_csv(apart, index=False)
    for root in (None, folder, tmp_path):
        assert names(gather_images([apart], root), folder) == ["b.png"]


def test_a_file_that_is_no_image_is_named_before_any_is_predicted(folder):
    paths = [folder / "a.JPG", folder / "b.png"]
    for path in paths:
        Image.new("RGB", (4, 4)).save(path)
    check_images(paths)
    (folder / "b.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"cannot read the image .*b\.png: not an image"):
        check_images(paths)


def test_each_mistake_is_named(folder, tmp_path):
    (folder / "empty.csv").write_text("path\n")
    (folder / "other.csv").write_text("file,label\nb.png,1\n")
    (folder / "gone.csv").write_text("path\nb.png\nz.png\n")
    (tmp_path / "nothing").mkdir()
    cases = {
        folder / "z.png": "does not exist",
        folder / "notes.txt": "neither an image nor a table",
        folder / "empty.csv": "has no rows",
        folder / "other.csv": "no column path or file_name or img_filename: it has file, label",
        folder / "gone.csv": r"1 of 2 images do not exist, for example .*z\.png",
        tmp_path / "nothing": "contains no images",
    }
    for place, message in cases.items():
        with pytest.raises(UserError, match=message):
            gather_images([place])
    with pytest.raises(UserError, match="no images given"):
        gather_images([])
