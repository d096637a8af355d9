"""The bundled data: textures can be told apart, digits are scikit-learn's, and plain training falls for the shift."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from stablenet.data.augment import Normalization, Resize
from stablenet.data.loader import BatchSettings, Loader, render_part
from stablenet.data.sources.digits import NUM_TEXTURES, draw_texture, draw_textures, read_embedded, texture_names
from stablenet.data.splits import split_images


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


CENTRED = Normalization((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def test_digits_are_scikit_learns_enlarged():
    table, bunch = read_embedded(), load_digits()
    digits = table.read_digits()
    assert (digits.shape, digits.dtype) == ((1797, 28, 28), np.uint8)
    np.testing.assert_array_equal(table.rows["label"], bunch.target)
    assert table.rows["subset"].value_counts().to_dict() == {"train": 1297, "test": 500}
    # shrunk again by averaging 7 × 7 pixels into 4 × 4, both copies agree but for the filter
    small = digits.reshape(-1, 4, 7, 4, 7).mean((2, 4)) / 255
    original = bunch.images.reshape(-1, 4, 2, 4, 2).mean((2, 4)) / 16
    assert np.abs(small - original).mean() < 0.03


def test_there_are_enough_backgrounds_of_the_right_form():
    table = read_embedded()
    backgrounds = table.read_backgrounds()
    assert len(backgrounds) == len(table.domains) == len(set(table.domains)) >= 100
    assert {(image.shape, image.dtype.name) for image in backgrounds} == {((96, 96, 3), "uint8")}


def _paper_network():
    """The paper's convolutional network for MNIST-M (Tab. Shallow)."""
    layers = []
    for inputs, outputs, kernel, stride in ((3, 32, 7, 1), (32, 32, 5, 2), (32, 64, 3, 1), (64, 64, 3, 2)):
        layers += [nn.Conv2d(inputs, outputs, kernel, stride), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers += [nn.Dropout(0.4)] if stride == 2 else []
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(576, 16), nn.ReLU(), nn.Linear(16, 10))


def _accuracy(network, samples):
    loader = Loader(samples, BatchSettings(batch_size=250, shuffle=False), Resize(28, CENTRED))
    with torch.no_grad():
        hits = [(network.eval()(batch.x).argmax(1) == batch.y).float() for batch in loader.epoch(0)]
    return torch.cat(hits).mean().item()


def _train_plainly(seed, epochs):
    """Accuracy on source validation and on the shifted target, at the dominant ratio 0.9."""
    table = read_embedded()
    manifest = split_images(table, "adversarial", seed=seed, ratio=0.9)
    parts = {part: render_part(table, manifest, part) for part in ("train", "validation", "test")}
    loader = Loader(parts["train"], BatchSettings(batch_size=64, seed=seed, drop_last=True), Resize(28, CENTRED))
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # initial weights and dropout have no generator of their own
        network = _paper_network()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3)
        for epoch in range(epochs):
            if epoch == epochs * 2 // 3:
                optimizer.param_groups[0]["lr"] *= 0.1
            network.train()
            for batch in loader.epoch(epoch):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(batch.x), batch.y).backward()
                optimizer.step()
    return _accuracy(network, parts["validation"]), _accuracy(network, parts["test"])


@pytest.mark.usefixtures("one_thread")
def test_plain_training_falls_for_the_shift_soon():
    validation, test = _train_plainly(seed=0, epochs=6)
    print(f"validation {validation:.3f}, shifted target {test:.3f}")
    assert validation > 0.85
    assert test < validation - 0.1


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("one_thread")
def test_plain_training_falls_for_the_shift_in_the_papers_schedule():
    results = np.array([_train_plainly(seed, epochs=30) for seed in (0, 1, 2)])
    drop = results[:, 0] - results[:, 1]
    for name, values in zip(("validation", "shifted target", "drop"), (*results.T, drop), strict=True):
        print(f"{name}: {values.mean():.3f} ± {values.std(ddof=1):.3f} (3 seeds: {np.round(values, 3).tolist()})")
    assert results[:, 0].min() > 0.9
    assert drop.min() > 0.1
