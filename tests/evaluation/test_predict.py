"""Predictions of parts and of files, against one image at a time."""

import numpy as np
import pytest
import torch
from PIL import Image

from stablenet.errors import UserError
from stablenet.evaluation.predict import find_broken, find_device, predict_images, predict_part, read_pixels
from tests.made_run import random_network


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
    with pytest.raises(UserError, match="none of auto"):
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
