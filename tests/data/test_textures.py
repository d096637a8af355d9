"""Textures are reproducible, distinct, and can be told apart from one small crop."""

import numpy as np

from stablenet.data.textures import NUM_TEXTURES, draw_texture, draw_textures, texture_names


def _describe(crops):
    """Colour mean, spread and edge strength of crops (n, s, s, 3): (n, 12)."""
    values = crops.astype(float)
    statistics = [values.mean((1, 2)), values.std((1, 2))]
    statistics += [np.abs(np.diff(values, axis=axis)).mean((1, 2)) for axis in (1, 2)]
    return np.concatenate(statistics, axis=1)


def _crops(image, count, rng):
    corners = rng.integers(0, image.shape[0] - 27, (count, 2))
    return np.stack([image[top : top + 28, left : left + 28] for top, left in corners])


def test_a_texture_depends_on_its_number_alone():
    np.testing.assert_array_equal(draw_texture(17), draw_textures(18)[17])
    assert not np.array_equal(draw_texture(17), draw_texture(23))  # the same kind of pattern


def test_there_are_many_textures_in_colour():
    textures = np.stack(draw_textures())
    assert textures.shape == (NUM_TEXTURES, 96, 96, 3)
    assert NUM_TEXTURES >= 100
    assert textures.dtype == np.uint8
    assert (textures.std((1, 2)).max(-1) > 15).all()  # none is flat
    assert (np.ptp(textures.astype(int), axis=-1).mean((1, 2)) > 20).all()  # none is grey
    assert len(set(texture_names())) == NUM_TEXTURES


def test_a_small_crop_tells_its_texture():
    """Nearest mean of twelve simple statistics; guessing would be right once in two hundred."""
    rng = np.random.default_rng(0)
    textures = draw_textures()
    known = np.stack([_describe(_crops(image, 20, rng)) for image in textures])
    scale = known.std((0, 1))
    centres = known.mean(1) / scale
    fresh = np.stack([_describe(_crops(image, 5, rng)) for image in textures]) / scale
    nearest = np.square(fresh[:, :, None] - centres).sum(-1).argmin(-1)
    right = (nearest == np.arange(NUM_TEXTURES)[:, None]).mean()
    assert right > 0.85


def test_no_two_textures_look_alike():
    rng = np.random.default_rng(1)
    described = np.stack([_describe(_crops(image, 40, rng)).mean(0) for image in draw_textures()])
    described /= described.std(0)
    distance = np.sqrt(np.square(described[:, None] - described).sum(-1))
    np.fill_diagonal(distance, np.inf)
    assert distance.min() > 0.4
