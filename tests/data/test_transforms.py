"""Hue against Python's own colour conversion; the order of the changes matters and is each image's own."""

import colorsys

import pytest
import torch

from stablenet.data.transforms import jitter_colour, shift_hue, to_grayscale


def test_hue_agrees_with_the_standard_library():
    images = torch.rand(6, 3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    images[0, :, 0, 0] = 0.3
    turns = torch.tensor([0.0, 0.1, -0.4, 0.5, 0.25, -0.01], dtype=torch.float64)
    shifted = shift_hue(images, turns)
    for k in range(6):
        for i in range(4):
            for j in range(5):
                hue, saturation, value = colorsys.rgb_to_hsv(*images[k, :, i, j].tolist())
                expected = colorsys.hsv_to_rgb((hue + turns[k].item()) % 1, saturation, value)
                assert shifted[k, :, i, j].tolist() == pytest.approx(expected, abs=1e-9)


def test_contrast_of_nothing_leaves_the_mean_grey():
    images = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    factors = torch.tensor([[1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0]])
    changed = jitter_colour(images, factors, torch.tensor([[3, 1, 0, 2], [0, 1, 2, 3]]))
    weights = torch.tensor([0.2989, 0.587, 0.114]).view(3, 1, 1)
    mean = (images[0] * weights).sum(0).mean()
    torch.testing.assert_close(changed[0], mean.expand(3, 4, 4))
    torch.testing.assert_close(changed[1], images[1], atol=1e-6, rtol=0)


def test_brightness_before_and_after_contrast_differ_by_clipping():
    """Doubling clips to white before contrast halves the distance from the mean; the other way it does not."""
    images = torch.tensor([0.2, 0.9]).view(1, 1, 1, 2).expand(2, 3, 1, 2)
    factors = torch.tensor([[2.0, 0.5, 1.0, 0.0]]).expand(2, 4)
    changed = jitter_colour(images, factors, torch.tensor([[0, 1, 2, 3], [1, 0, 2, 3]]))
    luma = 0.2989 + 0.587 + 0.114
    first = [(value + luma * 0.7) / 2 for value in (0.4, 1.0)]
    second = [min(1, value + luma * 0.55) for value in (0.2, 0.9)]
    torch.testing.assert_close(changed[:, 0, 0], torch.tensor([first, second]))


def test_only_chosen_images_become_grey():
    images = torch.rand(3, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    gray = to_grayscale(images, torch.tensor([True, False, True]))
    assert torch.equal(gray[1], images[1])
    assert torch.equal(gray[0, 0], gray[0, 2])
    assert not torch.equal(gray[0], images[0])
