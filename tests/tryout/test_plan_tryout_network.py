"""Which network is tried: by the size of the images, the machine, and what weights can be had."""

import numpy as np
import pytest
from PIL import Image

from stablenet.data.sources.own import open_own
from stablenet.engine.config import read_config
from stablenet.engine.run_data import check_config
from stablenet.errors import UserError
from stablenet.tryout.plan_tryout import choose_network, typical_side


def save_images(folder, *sizes):
    for k, size in enumerate(sizes):
        file = folder / "ab"[k % 2] / f"{k}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((*size, 3), 99, np.uint8)).save(file)
    return open_own(folder)


def test_the_typical_side_is_the_median_of_the_shorter_ones(tmp_path):
    assert typical_side(save_images(tmp_path, (20, 90), (50, 60), (300, 400), (70, 40))) == 45


def test_small_images_get_a_small_network_of_their_size(tmp_path):
    found = choose_network(save_images(tmp_path, (32, 32), (32, 32)), "cpu", can_fetch=lambda name: pytest.fail(name))
    assert found.values["model"] == {"name": "paper-cnn", "parameters": {"image_size": 32}}
    assert found.image_size == 32


@pytest.mark.parametrize(("device", "name", "side"), [("cpu", "resnet18", 112), ("cuda", "resnet50", 224)])
def test_photographs_get_pretrained_weights_where_there_are_some(tmp_path, device, name, side):
    images = save_images(tmp_path, (300, 200), (300, 200))
    found = choose_network(images, device, can_fetch=lambda asked: asked == name)
    assert (found.values["model"]["name"], found.values["model"]["pretrained"]) == (name, "imagenet")
    assert found.image_size == side
    without = choose_network(images, device, can_fetch=lambda asked: False)
    assert without.values["model"]["name"] == "paper-cnn"
    assert "no pretrained weights" in without.why


def test_a_named_network_is_taken_with_its_file(tmp_path, monkeypatch):
    images = save_images(tmp_path / "images", (60, 60), (60, 60))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.safetensors").touch()
    found = choose_network(images, "cpu", "resnet50", "own.safetensors")
    assert found.values["model"]["pretrained"] == str(tmp_path / "own.safetensors")
    assert choose_network(images, "cpu", "resnet18").values["model"]["pretrained"] == ""
    with pytest.raises(UserError, match="--pretrained needs --backbone"):
        choose_network(images, "cpu", "", "own.safetensors")


@pytest.mark.parametrize("backbone", ["", "resnet18", "paper-cnn"])
def test_every_choice_is_a_config(tmp_path, backbone):
    images = save_images(tmp_path, (60, 60), (60, 60))
    check_config(read_config(choose_network(images, "cpu", backbone, can_fetch=lambda name: False).values))


def test_an_image_that_cannot_be_read_is_named(tmp_path):
    images = save_images(tmp_path, (60, 60), (60, 60))
    (tmp_path / "b" / "1.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"the image b/1\.png cannot be read"):
        choose_network(images, "cpu", can_fetch=lambda name: False)
