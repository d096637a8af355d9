"""Shares on the object, and where the object's pixels come from."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from stablenet.data.sources import read_source
from stablenet.errors import UserError
from stablenet.saliency import share_on_object
from stablenet.saliency.maps import INK, find_known_masks, read_mask_files, resize_masks


def test_shares_by_hand():
    maps = torch.tensor([[[1.0, 3.0], [0.0, 4.0]], [[1.0, 1.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]])
    masks = torch.tensor([[[True, False], [False, True]]]).expand(3, 2, 2)
    shares = share_on_object(maps, masks)
    assert shares[:2].tolist() == [5 / 8, 1 / 2]
    assert shares[2].isnan()


def test_a_digits_mask_is_its_ink(runs):
    ids = ["digits/1300", "digits/0007"]
    masks = find_known_masks(runs[0].open_data().table, runs[0].manifest, "test", ids, runs[0].config.data.image_size)
    digits = read_source("embedded", None).read_digits()
    assert torch.equal(masks, torch.from_numpy(digits[[1300, 7]]) >= INK)
    assert 0.1 < masks.float().mean() < 0.6


def test_masks_grow_with_the_image():
    small = torch.tensor([[[True, False], [False, False]]])
    assert torch.equal(resize_masks(small, 4)[0], torch.kron(small[0].int(), torch.ones(2, 2).int()).bool())


def test_masks_from_files(tmp_path):
    pixels = np.zeros((4, 4), np.uint8)
    pixels[:2] = 255
    Image.fromarray(pixels).save(tmp_path / "cat.png")
    masks = read_mask_files(tmp_path, [Path("photos/cat.jpg")], 4)
    assert torch.equal(masks[0], torch.from_numpy(pixels > 0))
    with pytest.raises(UserError, match=r"dog\.png"):
        read_mask_files(tmp_path, [Path("dog.jpg")], 4)
    with pytest.raises(UserError, match="is not a folder"):
        read_mask_files(tmp_path / "nothing", [Path("dog.jpg")], 4)
