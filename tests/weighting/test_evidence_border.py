"""Shallow features without a network, by hand: the border, contrasts, flat images."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from stablenet.data.decode import decode
from stablenet.weighting.evidence import (
    SHADES,
    SIDE,
    count_shades,
    describe_pixels,
    draw_maps,
    extract_bank,
    mask_middle,
    pool_border,
    shrink,
)


@pytest.mark.parametrize(("height", "width"), [(16, 8), (8, 8), (7, 5), (3, 9), (2, 6), (1, 1)])
def test_border_is_the_outer_eighth_at_least_one_position(height, width):
    maps = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inside = torch.zeros(height, width, dtype=torch.bool)
    top, left = max(1, height // 8), max(1, width // 8)
    inside[top : height - top, left : width - left] = True
    ring = maps[:, :, ~inside]
    expected = torch.cat([ring.mean(2), ring.std(2, correction=0)], 1).float()
    torch.testing.assert_close(pool_border(maps), expected)


def test_the_middle_is_the_inner_half_of_each_side():
    mask = mask_middle(16, 8)
    assert int(mask.sum()) == 8 * 4
    assert mask[4:12, 2:6].all()


def test_features_of_the_middle_see_nothing_else():
    pixels = torch.randint(0, 256, (4, 32, 32, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    changed = pixels.clone()
    changed[:, :4] = changed[:, -4:] = 0
    torch.testing.assert_close(describe_pixels(pixels).middle, describe_pixels(changed).middle)


def test_the_edge_is_the_median_colour_of_the_border():
    pixels = torch.randint(0, 256, (4, 32, 24, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    ring = torch.ones(32, 24, dtype=torch.bool)
    ring[4:28, 3:21] = False
    expected = np.quantile(pixels[:, ring].numpy() / 255, 0.5, axis=1, method="lower")
    torch.testing.assert_close(describe_pixels(pixels).edge, torch.from_numpy(expected).float())


def test_shades_are_counted_in_cells():
    colours = torch.tensor([[0.0, 0.0, 0.0], [0.06, 0.0, 0.0], [0.07, 0.0, 0.0], [1.0, 1.0, 1.0], [0.94, 1.0, 1.0]])
    counts = count_shades(colours)
    assert counts.shape == (SHADES**3,)
    assert {place: number for place, number in enumerate(counts.tolist()) if number} == {
        0: 2,
        SHADES**2: 1,
        SHADES**3 - 1: 2,
    }


def test_large_images_are_resized_as_stored_ones_are():
    generator = np.random.default_rng(0)
    small = generator.integers(0, 256, (12, 15, 3), dtype=np.uint8)
    pixels = np.asarray(Image.fromarray(small).resize((150, 120)))
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    expected = torch.from_numpy(decode(file.getvalue(), (SIDE, SIDE)).copy()).permute(2, 0, 1).float() / 255
    found = shrink(torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float() / 255)
    torch.testing.assert_close(found[0], expected, atol=1.5 / 255, rtol=0)
    assert shrink(torch.rand(2, 3, 20, 100)).shape == (2, 3, 20, SIDE)


def test_border_features_do_not_see_the_middle():
    pixels = torch.randint(0, 256, (4, 32, 32, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    changed = pixels.clone()
    changed[:, 12:20, 12:20] = 0
    whole, border = extract_bank(pixels)
    other_whole, other_border = extract_bank(changed)
    torch.testing.assert_close(border, other_border)
    assert not torch.allclose(whole, other_whole)


def test_maps_by_hand():
    """One red pixel in a black image: its colours, differences and contrasts are known."""
    image = torch.zeros(1, 3, 8, 8)
    image[0, 0, 4, 4] = 1.0
    maps = draw_maps(image)
    assert maps.shape == (1, 18, 8, 8)
    assert maps[0, 3, 4, 4] == 1  # red − green
    assert maps[0, 4, 4, 4] == 0.5  # (red + green)/2 − blue
    assert maps[0, 5, 4, 4] == 1  # largest − smallest
    across, down = maps[0, 6], maps[0, 7]
    assert across[4, 4] == pytest.approx(1 / 3)
    assert across[4, 3] == pytest.approx(1 / 3)
    assert across[3, 4] == 0
    assert down[3, 4] == pytest.approx(1 / 3)


def test_a_flat_image_has_no_contrast_and_no_spread():
    pooled = pool_border(draw_maps(torch.full((1, 3, 16, 16), 0.25)))[0]
    torch.testing.assert_close(pooled[:3], torch.full((3,), 0.25))
    # Only contrasts across the frame itself would differ; there are none.
    torch.testing.assert_close(pooled[3:], torch.zeros(33))
