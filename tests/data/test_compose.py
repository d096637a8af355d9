"""Blending against a slow loop, the exact crop places, and refusals."""

import numpy as np
import pytest

from stablenet.data.compose import PLACES, blend, crop_corners


def _blend_slowly(digits, backgrounds, domain, u, v):
    """Pixel by pixel in plain Python integers."""
    blended = np.zeros((*digits.shape, 3), np.uint8)
    for k, digit in enumerate(digits):
        image = backgrounds[domain[k]]
        left = int(u[k] / 65536 * (image.shape[1] - 27))
        top = int(v[k] / 65536 * (image.shape[0] - 27))
        for i in range(28):
            for j in range(28):
                for channel in range(3):
                    difference = int(image[top + i, left + j, channel]) - int(digit[i, j])
                    blended[k, i, j, channel] = abs(difference)
    return blended


@pytest.fixture
def scene():
    rng = np.random.default_rng(0)
    backgrounds = [rng.integers(0, 256, size, np.uint8) for size in [(28, 28, 3), (40, 61, 3), (90, 30, 3)]]
    digits = rng.integers(0, 256, (7, 28, 28), np.uint8)
    domain = np.array([0, 1, 2, 1, 2, 2, 1])
    u, v = rng.integers(0, PLACES, (2, 7))
    u[3], v[3], u[4], v[4] = 0, 0, PLACES - 1, PLACES - 1
    return digits, backgrounds, domain, u, v


def test_blend_agrees_with_a_slow_loop(scene):
    np.testing.assert_array_equal(blend(*scene), _blend_slowly(*scene))


def test_corners_reach_both_ends_and_every_place_alike():
    place = np.arange(PLACES)
    corners = crop_corners(place, np.full_like(place, 91), 28)
    counts = np.bincount(corners)
    assert (corners.min(), corners.max(), len(counts)) == (0, 63, 64)
    assert counts.min() == counts.max() == PLACES // 64


def test_white_ink_inverts_what_bare_paper_shows(scene):
    digits, backgrounds, domain, u, v = scene
    white = blend(np.full_like(digits, 255), backgrounds, domain, u, v)
    bare = blend(np.zeros_like(digits), backgrounds, domain, u, v)
    np.testing.assert_array_equal(255 - white, bare)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"domain": 3}, "domains must be in 0..2"), ({"u": PLACES}, "u must be in"), ({"v": -1}, "v must be in")],
)
def test_values_out_of_range_are_refused(scene, change, message):
    names = dict(zip(("digits", "backgrounds", "domain", "u", "v"), scene, strict=True))
    for name, value in change.items():
        names[name] = np.where(np.arange(7) == 2, value, names[name])
    with pytest.raises(ValueError, match=message):
        blend(**names)


def test_a_background_smaller_than_a_digit_is_refused(scene):
    digits, backgrounds, domain, u, v = scene
    with pytest.raises(ValueError, match="background 1 is smaller"):
        blend(digits, [backgrounds[0], backgrounds[1][:27], backgrounds[2]], domain, u, v)
